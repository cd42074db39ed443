# SPDX-License-Identifier: Apache-2.0
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from m2flow.errors import RewardError
from m2flow.rewards.answers import pool as pools
from m2flow.rewards.answers.pool import Pool

SLOW = ("5", r"\int_0^{10^{9}} x^{x^{x}} dx")
"""An answer that takes Math-Verify longer than any limit here."""
LIMITS = {"timeout_s": 0.3, "memory_bytes": 2**30}


@pytest.fixture
def pool():
    """Two workers with little patience."""
    made = Pool(num_workers=2, **LIMITS)
    yield made
    made.close()


def processes(group: int) -> list[int]:
    """Those of a worker: its keeper and its judge."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return sorted(found)


def eventually(condition: Callable[[], bool], seconds: float = 15) -> bool:
    """Whether ``condition`` comes true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_verdicts_come_in_the_order_of_the_questions(pool):
    pairs = [(str(i), f"{i if i % 3 else i + 1}.0") for i in range(60)]
    assert pool.judge(pairs) == ["right" if i % 3 else "wrong" for i in range(60)]
    assert pool.judge([]) == []


def test_no_process_runs_before_there_is_a_question_or_more_than_there_are_questions():
    pool = Pool(num_workers=2, **LIMITS)
    assert pool._workers == []
    pool.judge([("1", "1")])
    assert len(pool._workers) == 1
    pool.close()
    assert pool._workers == []


def test_an_answer_that_takes_too_long_costs_only_itself(pool):
    pool.judge([("1", "1")] * 2)
    start = time.monotonic()
    assert pool.judge([SLOW, ("1/2", "0.5"), SLOW, ("1/2", "0.5")]) == ["timeout", "right", "timeout", "right"]
    assert time.monotonic() - start < 10


def test_a_question_larger_than_a_pipe_goes_through(pool):
    assert pool.judge([("é" * 40_000, "x" * 200_000), ("1", "1.0")]) == ["wrong", "right"]


def test_unpaired_surrogates_are_no_trouble(pool):
    assert pool.judge([("5", "\ud800"), ("5", "5\udfff"), ("5", "\x00")]) == ["wrong"] * 3


@linux_only
def test_after_a_judge_died_between_questions_no_verdict_goes_to_the_wrong_one(pool):
    pool.judge([("1", "1")])
    keeper = pool._workers[0].process.pid
    (idle,) = set(processes(keeper)) - {keeper}
    os.kill(idle, signal.SIGKILL)
    pairs = [(str(i), f"{i if i % 2 else i + 1}.0") for i in range(20)]
    found = pool.judge(pairs)
    assert found.count("crash") <= 1
    assert [f for f in zip(found, pairs, strict=True) if f[0] != "crash"] == [
        ("right" if i % 2 else "wrong", pair) for i, pair in enumerate(pairs) if found[i] != "crash"
    ]
    assert keeper not in [worker.process.pid for worker in pool._workers]


@linux_only
def test_a_judge_killed_in_the_middle_of_a_question_is_a_crash():
    pool = Pool(num_workers=1, timeout_s=60, memory_bytes=2**30)
    pool.judge([("1", "1")])
    keeper = pool._workers[0].process.pid
    (busy,) = set(processes(keeper)) - {keeper}
    threading.Timer(0.5, os.kill, (busy, signal.SIGKILL)).start()
    assert pool.judge([SLOW, ("1/2", "0.5")]) == ["crash", "right"]
    pool.close()


@linux_only
def test_a_worker_that_vanishes_altogether_is_a_crash_and_is_replaced(pool):
    pool.judge([("1", "1")])
    (worker,) = pool._workers
    os.killpg(worker.process.pid, signal.SIGKILL)
    assert eventually(lambda: not processes(worker.process.pid))
    assert pool.judge([("1/2", "0.5"), ("1/2", "0.5")]).count("crash") == 1
    assert pool.judge([("1/2", "0.5")] * 4) == ["right"] * 4


def test_a_worker_that_is_stopped_is_killed_from_outside(pool, monkeypatch):
    monkeypatch.setattr(pools, "_GRACE_S", 0.2)
    pool.judge([("1", "1")])
    os.killpg(pool._workers[0].process.pid, signal.SIGSTOP)
    assert pool.judge([("1/2", "0.5")]) == ["timeout"]
    assert pool.judge([("1/2", "0.5")]) == ["right"]


@linux_only
def test_closing_or_losing_a_pool_ends_its_processes():
    for end in (Pool.close, lambda pool: None):
        pool = Pool(num_workers=2, **LIMITS)
        pool.judge([("1", "1"), ("2", "2")])
        groups = [worker.process.pid for worker in pool._workers]
        assert all(map(processes, groups))
        end(pool)
        del pool
        gc.collect()
        assert eventually(lambda groups=groups: not any(map(processes, groups)))


@linux_only
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), 9)", "raise SystemExit(3)"])
def test_no_process_outlives_a_parent_that_ends_in_whatever_way(end):
    code = (
        "import os; from m2flow.rewards.answers.pool import Pool, _framed\n"
        "pool = Pool(num_workers=1, timeout_s=1.0, memory_bytes=2**30); pool.judge([('1', '1')])\n"
        "worker = pool._workers[0]; print(worker.process.pid, flush=True)\n"
        f"worker.give(0, b''.join(map(_framed, {SLOW!r})))\n{end}"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert eventually(lambda: not processes(int(found.stdout)))


def test_an_interrupt_between_questions_leaves_no_answer_for_the_next_one(pool, monkeypatch):
    pool.judge([("1", "1")])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Pool, "_wait", interrupted)
        pool.judge([("1/2", "0.5")])
    assert pool.judge([("1/2", "0.6")]) == ["wrong"]


def test_a_forked_process_uses_workers_of_its_own(pool):
    pool.judge([("1", "1")])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if pool.judge([("1/2", "0.5")]) == ["right"] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.judge([("1/2", "0.5")]) == ["right"]


def test_threads_take_turns_and_each_gets_its_own_verdicts(pool):
    def ask(start: int) -> list[str]:
        pairs = [(f"{i}/1", str(i + i % 2)) for i in range(start, start + 8)]
        return [verdict for _ in range(10) for verdict in pool.judge(pairs)]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(0, 4000, 1000))) == [["right", "wrong"] * 40] * 4


def test_a_copy_of_a_pool_in_use_is_a_pool_with_the_same_limits_and_its_own_processes(pool):
    pool.judge([("1/2", "0.5")])
    copy = pickle.loads(pickle.dumps(pool))
    assert (copy.num_workers, copy.timeout_s, copy.memory_bytes) == (2, 0.3, 2**30)
    assert copy.judge([("1/2", "0.5")]) == ["right"]
    assert {w.process.pid for w in copy._workers}.isdisjoint(w.process.pid for w in pool._workers)
    copy.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_it_works_in_a_process_that_is_started_in_any_way(pool, method):
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as processes:
        assert processes.submit(pool.judge, [("1/2", "0.5"), ("1/2", "0.6")]).result(60) == ["right", "wrong"]


def test_processes_that_do_not_start_are_an_error_and_no_verdict(pool, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RewardError, match="does not start: exit code 1"):
        pool.judge([("1/2", "0.5")])
