# SPDX-License-Identifier: Apache-2.0
"""A process that saves checkpoints is killed with signal 9: at random moments, and before each call to the file system.

The file is also the program that is killed: it loads PyTorch once and forks, so that each process costs little. It
reads lines ``DIRECTORY STEPS CALLS`` and answers with the number of a process that saves STEPS further steps there,
then with each step that is on the disk, then with ``end`` and the exit status. With CALLS above 0 the process kills
itself before that many-th call.
"""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from m2flow.checkpoint.store import Store

CALLS = ("fsync", "rename", "mkdir", "open", "unlink", "rmdir", "lstat", "stat", "scandir")
KILLED = -signal.SIGKILL


def _state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((50_000,), float(step)), "version": step * 2**70}


def _dying(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


def _save(directory: Path, num_steps: int, calls: int) -> None:
    left = [calls]
    for name in CALLS if calls else ():
        setattr(os, name, _dying(getattr(os, name), left))
    store = Store(directory, keep=2)
    first = max(store.steps(), default=0) + 1
    for step in range(first, first + num_steps):
        store.save(step, _state(step))
        store.wait()
        # One write: a kill between a number and its end of line would leave half a line.
        os.write(1, b"%d\n" % step)


def _serve() -> None:
    for line in sys.stdin:
        directory, num_steps, calls = line.split()
        child = os.fork()
        if child == 0:
            _save(Path(directory), int(num_steps), int(calls))
            os._exit(0)
        print(child, flush=True)
        print("end", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Saver:
    """Starts processes that save, one at a time."""

    def __init__(self, program: "subprocess.Popen[str]") -> None:
        self._program = program

    def save(
        self, directory: Path, num_steps: int, *, calls: int = 0, kill_after_s: float | None = None
    ) -> tuple[int, int]:
        """The exit status, and the last step that was said to be on the disk (0: none)."""
        assert self._program.stdin and self._program.stdout
        print(directory, num_steps, calls, file=self._program.stdin, flush=True)
        process, step = int(self._program.stdout.readline()), 0
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(process, signal.SIGKILL)
        while not (line := self._program.stdout.readline()).startswith("end"):
            step = int(line)
        return int(line.split()[1]), step


@pytest.fixture(scope="module")
def saver() -> Iterator[Saver]:
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        yield Saver(program)


def _require_whole(directory: Path, at_least: int) -> int:
    """Everything under a complete name is intact; the newest is what was promised, or later. Returns it."""
    store = Store(directory, keep=2)
    for step in store.steps():
        state = store.load(step)
        assert state["step"] == step and state["version"] == step * 2**70
        assert torch.equal(state["weights"], torch.full((50_000,), float(step)))
    newest = max(store.steps(), default=0)
    assert newest >= at_least
    return newest


def test_a_kill_before_any_call_leaves_whole_checkpoints_and_the_next_process_tidies_up(saver: Saver, tmp_path: Path):
    killed, status = 0, KILLED
    for calls in range(1, 1000):
        directory = tmp_path / str(calls)
        # Three steps are there before: the fourth one is written, and the second one deleted.
        saver.save(directory, 3)
        status, promised = saver.save(directory, 1, calls=calls)
        newest = _require_whole(directory, at_least=max(3, promised))
        if status == 0:
            break
        assert status == KILLED and newest in (3, 4)
        killed += 1
        assert saver.save(directory, 1) == (0, newest + 1)
        assert sorted(path.name for path in directory.iterdir()) == [
            f"step-0000000{newest}",
            f"step-0000000{newest + 1}",
        ]
    # Folder, three files and two folders put on the disk, two renames, three files and a folder deleted, at least.
    assert status == 0 and killed >= 12


def test_kills_at_random_moments_leave_whole_checkpoints(saver: Saver, tmp_path: Path):
    begin = time.perf_counter()
    saver.save(tmp_path, 5)
    each_s = (time.perf_counter() - begin) / 5
    moments, newest = random.Random(0), 5
    for _ in range(60):
        status, promised = saver.save(tmp_path, 10**6, kill_after_s=moments.uniform(0, 3 * each_s))
        assert status == KILLED
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            newest = _require_whole(tmp_path, at_least=max(newest, promised))
    assert newest > 10
    assert saver.save(tmp_path, 1) == (0, newest + 1)
    assert len(list(tmp_path.iterdir())) == 2


if __name__ == "__main__":
    _serve()
