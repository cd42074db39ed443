# SPDX-License-Identifier: Apache-2.0
"""A run that is killed at random moments and resumed ends bit for bit like one that was left alone.

python benchmarks/kills.py [kills] [seed]
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from m2flow.checkpoint.store import Store

SCRIPT = Path(__file__).parents[1] / "examples" / "reasoning" / "grpo_math.py"
OPTIONS = ("--iterations=20", "--checkpoint.every=1", "--evaluate-every=5", "--observe.quiet", "--resume=auto")


def start(folder: Path) -> "subprocess.Popen[bytes]":
    """Start the run in ``folder``, or go on with it."""
    return subprocess.Popen([sys.executable, str(SCRIPT), *OPTIONS, "--run-dir", str(folder)])


def differences(one: Any, other: Any, *, path: str = "") -> list[str]:
    """Paths of the leaves in which two states differ, in a bit or in type."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [d for key in keys for d in differences(one.get(key), other.get(key), path=f"{path}/{key}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return [] if one.dtype == other.dtype and np.array_equal(one, other) else [path]
    return [] if type(one) is type(other) and one == other else [path]


def killed(folder: Path, moments: random.Random, *, longest_s: float, kills: int) -> int:
    """Kill and resume ``kills`` times, or until the run ends by itself; returns how often it was killed."""
    for count in range(kills):
        process = start(folder)
        try:
            process.wait(moments.uniform(0, longest_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"kill {count + 1}: checkpoints {Store(folder / 'checkpoints', keep=2).steps()}", flush=True)
            continue
        return count
    return kills


def main(kills: int = 20, seed: int = 0) -> None:
    """Print how many kills there were and whether the ends are the same."""
    with tempfile.TemporaryDirectory() as temporary:
        alone, disturbed = Path(temporary, "alone"), Path(temporary, "disturbed")
        begun = time.monotonic()
        assert start(alone).wait() == 0, "the undisturbed run failed"
        longest_s = time.monotonic() - begun
        moments, total, rounds, wrong = random.Random(seed), 0, 0, []
        while total < kills:
            folder = disturbed / str(rounds)
            total, rounds = total + killed(folder, moments, longest_s=longest_s, kills=kills - total), rounds + 1
            assert start(folder).wait() == 0, "a resumed run failed"
            ends = [Store(path / "checkpoints", keep=2).load(None) for path in (alone, folder)]
            wrong += differences(ends[0], ends[1])
        print(f"{total} kills in {rounds} runs of {longest_s:.0f} s; leaves that differ at the end: {wrong or 'none'}")
        sys.exit(bool(wrong))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
