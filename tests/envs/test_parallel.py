# SPDX-License-Identifier: Apache-2.0
"""Rows in worker processes are the rows of one process; what crashes or hangs is lost and counted, and no more."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragile_env import installed

from m2flow.data.trajectories import Episode
from m2flow.envs.stepping.base import Stepper
from m2flow.envs.stepping.parallel import ParallelStepper
from m2flow.envs.stepping.serial import SerialStepper
from m2flow.envs.toy import Toy
from m2flow.errors import CheckpointError, SimulatorError
from m2flow.registry import build, choose


def chosen(name: str, **options: Any) -> Any:
    return choose("envs", {"name": name, "max_episode_ticks": 7, **options})


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes steppers of the environment that breaks; closes them."""
    made: list[ParallelStepper] = []
    name = installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(way: str, **options: Any) -> ParallelStepper:
        cut = {"num_rows": 4, "num_workers": 2, "timeout_s": 2.0, **options}
        made.append(ParallelStepper(chosen(name, way=way), **cut))
        return made[-1]

    yield make
    for stepper in made:
        stepper.close()


def pushes(ticks: int, rows: int = 6) -> np.ndarray:
    return np.random.default_rng(1).uniform(-0.9, 0.9, (ticks, rows, 2)).astype(np.float32)


def run(stepper: Stepper, actions: np.ndarray) -> tuple[list[dict[str, np.ndarray]], list[Episode]]:
    """What all rows were given after each tick, all parts in flight at once, and the episodes that ended."""
    seen, episodes = [], []
    for now in actions:
        for part in range(stepper.num_parts):
            stepper.send(part, now[stepper.rows(part)])
        for part in range(stepper.num_parts):
            tick = stepper.receive(part)
            episodes += tick.episodes
            arrays = {"reward": tick.rewards, "terminated": tick.terminated, "truncated": tick.truncated}
            whole = {**arrays, "ended": tick.ended, "lost": tick.lost, **tick.observations}
            final = {f"final {name}": array for name, array in tick.final_observations.items()}
            seen.append({name: np.array(array) for name, array in {**whole, **final}.items()})
    return seen, sorted(episodes, key=lambda episode: episode.row)


def require_equal(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name, array in a.items():
            np.testing.assert_array_equal(array, b[name], err_msg=name)


def serial(**options: Any) -> SerialStepper:
    return SerialStepper(lambda rows: build(chosen("toy"), rows), num_rows=6, **options)


@pytest.mark.parametrize(("workers", "parts", "group"), [(1, 1, 1), (6, 3, 2), (3, 1, 3)])
def test_workers_give_what_one_process_gives_bit_for_bit(workers: int, parts: int, group: int):
    here = serial(num_parts=parts, group_size=group)
    there = ParallelStepper(chosen("toy"), num_rows=6, num_workers=workers, num_parts=parts, group_size=group)
    assert there.interface == here.interface
    for seed in (5, 6):
        for one, other in zip(here.reset(seed), there.reset(seed), strict=True):
            require_equal([dict(one)], [dict(other)])
        one, other = run(here, pushes(20)), run(there, pushes(20))
        require_equal(one[0], other[0])
        assert one[1] == other[1] and len(one[1]) == 12
    np.testing.assert_array_equal(here.render(4), there.render(4))
    there.close()


def test_a_state_goes_from_one_process_to_workers_and_back():
    first = serial()
    first.reset(0)
    run(first, pushes(11))
    for workers in (2, 6):
        there = ParallelStepper(chosen("toy"), num_rows=6, num_workers=workers)
        there.load_state(first.state())
        assert str(there.state()) == str(first.state())
        back = serial(num_parts=2)
        back.load_state(there.state())
        wanted = run(back, pushes(20))[1]
        assert [asdict(e) for e in run(there, pushes(20))[1]] == [asdict(e) for e in wanted]
        there.close()


@pytest.mark.parametrize("way", ["exit", "kill", "raise", "hang"])
def test_a_crash_or_a_hang_loses_the_episodes_of_its_worker_and_nothing_else(fragile: Any, way: str):
    stepper, actions = fragile(way), pushes(16, 4)
    stepper.reset(0)
    broken = actions.copy()
    broken[9, 3] = 1.0
    seen, episodes = run(stepper, broken)
    for number, tick in enumerate(seen):
        np.testing.assert_array_equal(tick["lost"], [False, False, number == 9, number == 9])
    untouched = ParallelStepper(chosen("toy"), num_rows=4, num_workers=2)
    untouched.reset(0)
    wanted, counted = run(untouched, actions)
    for tick, other in zip(seen, wanted, strict=True):
        np.testing.assert_array_equal(tick["position"][:2], other["position"][:2])
    assert [e for e in episodes if e.row < 2] == [e for e in counted if e.row < 2]
    # Row 2 has ended its first episode in tick 7, lost its second in tick 10 and is in tick 6 of its third.
    assert [e for e in episodes if e.row == 2] == [next(e for e in counted if e.row == 2)]
    untouched.close()


def test_the_episode_after_a_lost_one_is_the_next_of_its_row(fragile: Any):
    stepper = fragile("exit")
    stepper.reset(0)
    broken = pushes(1, 4)
    broken[0, 3] = 1.0
    run(stepper, broken)
    here = serial()
    here.reset(0)
    # The rows of one process never break: their second episodes begin when the first have ended.
    run(here, pushes(7))
    np.testing.assert_array_equal(stepper.observations[0]["position"][2:], here.observations[0]["position"][2:4])
    assert stepper.state()["num_begun"] == [1, 1, 2, 2]


def test_a_worker_that_is_killed_from_outside_is_replaced(fragile: Any):
    stepper = fragile("exit")
    stepper.reset(0)
    os.kill(stepper._workers[0].process.pid, signal.SIGKILL)
    seen, _ = run(stepper, pushes(2, 4))
    np.testing.assert_array_equal([tick["lost"] for tick in seen], [[True, True, False, False], [False] * 4])


def test_a_simulator_that_always_breaks_ends_the_run_with_its_own_words(fragile: Any):
    stepper = fragile("raise")
    stepper.reset(0)
    actions = np.ones((9, 4, 2), np.float32)
    with pytest.raises(SimulatorError, match=r"(?s)rows 0 to 1 of 'fragile' was lost 3 times.*a joint of length 0"):
        run(stepper, actions)


def test_a_simulator_that_cannot_start_or_begin_says_why(fragile: Any):
    with pytest.raises(SimulatorError, match="the simulator is not installed: install it"):
        fragile("start")
    with pytest.raises(SimulatorError, match=r"(?s)ended while it was asked.*no scene today"):
        fragile("begin").reset(0)


def test_a_checkpoint_that_does_not_repeat_is_refused_and_the_workers_go_on(fragile: Any):
    stepper = fragile("exit")
    stepper.reset(0)
    state = stepper.state()
    wrong = {**state, "actions": [np.zeros((9, 2), np.float32)] * 4}
    with pytest.raises(CheckpointError, match="does not repeat itself"):
        stepper.load_state(wrong)
    stepper.load_state(state)
    assert stepper.state()["num_begun"] == [1] * 4


def test_rows_that_workers_cannot_share_are_refused():
    with pytest.raises(SimulatorError, match="6 rows cannot be cut into equal shares of 4 workers"):
        ParallelStepper(chosen("toy"), num_rows=6, num_workers=4)
    with pytest.raises(SimulatorError, match="3 workers cannot be shared out to 2 parts"):
        ParallelStepper(chosen("toy"), num_rows=6, num_workers=3, num_parts=2)


def test_closing_ends_the_processes(fragile: Any):
    stepper = fragile("exit")
    pids = [worker.process.pid for worker in stepper._workers]
    stepper.close()
    stepper.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


_ALONE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from test_parallel import ParallelStepper, chosen
stepper = ParallelStepper(chosen("fragile", way="hang"), num_rows=2, num_workers=2, timeout_s=3.0)
stepper.reset(0)
print(*[worker.process.pid for worker in stepper._workers], flush=True)
stepper.send(0, np.array([[0, 0], [1, 1]], np.float32) * {hangs})
sys.stdin.read()
"""


@pytest.mark.parametrize("hangs", [0, 1])
def test_workers_end_when_the_process_they_step_for_is_killed(tmp_path: Path, hangs: int):
    installed(tmp_path)
    code = _ALONE.format(tests=str(Path(__file__).parent), hangs=hangs)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    assert parent.stdout
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while left := [pid for pid in pids if _is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)
    assert len(pids) == 2


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_more_rows_than_a_simulator_can_hold_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Toy, "max_rows", 1)
    with pytest.raises(SimulatorError, match="toy holds at most 1 rows in one process, 2 workers would hold 3 each"):
        ParallelStepper(chosen("toy"), num_rows=6, num_workers=2)
