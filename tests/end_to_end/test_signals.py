# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM in the middle: what is said, and what is saved."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from m2flow.errors import FlowError
from m2flow.flow.signals import Stopped
from tests.end_to_end.conftest import steps, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "reasoning" / "grpo_math.py"


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A shell starts what runs in the background with Ctrl-C ignored, and a run leaves what is ignored alone."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_iteration_and_saves_it(tmp_path: Path, number: int):
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=r"saved after 1 iteration$") as caught:
        train(tmp_path / "run", iterations=9, each=lambda: os.kill(os.getpid(), number))
    assert (caught.value.number, caught.value.folder) == (number, tmp_path / "run")
    assert steps(tmp_path / "run") == [1] and (tmp_path / "run" / "report.html").exists()
    assert signal.getsignal(number) is before
    train(tmp_path / "run", resume="auto")
    assert steps(tmp_path / "run") == [1, 2]


def test_a_second_signal_stops_at_once(done: Path):
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    with pytest.raises(Stopped, match="in the middle of an iteration, which is lost"):
        train(done, iterations=9, resume="auto", each=twice)
    assert steps(done) == [1, 2] and (done / "report.html").exists()


# The command as a person types it: one start of it, for what only a process of its own can show.


def test_the_example_is_held_stopped_and_resumed_from_the_command_line(tmp_path: Path):
    words = f"{EXAMPLE} --run-dir run --prompts-per-iteration 4 --samples-per-prompt 2 --evaluate-every 0".split()
    command = [sys.executable, *words, "--iterations", "100000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        try:
            while not (tmp_path / "run" / "metrics.jsonl").exists():
                assert run.poll() is None
                time.sleep(0.05)
            with pytest.raises(FlowError, match=r"another process is running in .*; wait for it or choose another"):
                train(tmp_path / "run")
            run.send_signal(signal.SIGTERM)
            said = run.communicate(timeout=60)[1]
        finally:
            run.kill()
    done = steps(tmp_path / "run")[-1]
    assert run.returncode == 128 + signal.SIGTERM
    assert f"stopped: saved after {done} iteration" in said and "Traceback" not in said
    assert "--run-dir run --resume auto" in said and "go on from the newest checkpoint with: python" in said
