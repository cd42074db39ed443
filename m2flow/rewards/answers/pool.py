# SPDX-License-Identifier: Apache-2.0
"""A pool of processes that judge answers: each verdict bounded in time and memory, and none that can hurt the run."""

import os
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any

from m2flow.errors import RewardError

REPLIES = {b"R": "ready", b"1": "right", b"0": "wrong", b"T": "timeout", b"M": "memory", b"C": "crash"}
"""What each byte of a worker means."""
_GRACE_S = 5.0
"""A worker that has not ended itself so long after its time is killed from here."""
_START_S = 120.0


class Worker:
    """One process and the pipes to it. It judges one answer at a time."""

    def __init__(self, timeout_s: float, memory_bytes: int) -> None:
        self.timeout_s = timeout_s
        self.owner = os.getpid()
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker lives)
        code = "m2flow.rewards.answers.worker"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", code, str(os.getpid()), str(timeout_s), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self.process.stdin and self.process.stdout
        self.inlet, self.outlet = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.inlet, False)
        self.job: int | None = None
        self.unsent = b""
        self.deadline = time.monotonic() + _START_S
        self.is_ready = False
        self.is_lost = False

    def give(self, job: int, request: bytes) -> None:
        """Start on a request."""
        self.job, self.unsent = job, request
        self.deadline = time.monotonic() + self.timeout_s + _GRACE_S
        self.send()

    def send(self) -> None:
        """Write as much of the request as the pipe takes. A dead worker is noticed when its reply is read."""
        try:
            self.unsent = self.unsent[os.write(self.inlet, self.unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsent = b""

    def receive(self) -> str:
        """What the worker says; that it has died is a crash.

        Raises:
            RewardError: it died before it was ready, which no answer is to blame for.
        """
        said = REPLIES.get(os.read(self.outlet, 1))
        if said is None and not self.is_ready:
            self.process.wait()
            raise RewardError(f"the process that judges answers does not start: {self._last_words()}")
        self.is_ready = True
        # After a crash nobody knows how much of a request was read: such a worker is not asked again.
        self.is_lost = said in (None, "crash")
        return said or "crash"

    def _last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:] or f"exit code {self.process.returncode}"

    def kill(self) -> None:
        """End it and what it forked, at once. A copy of this object in a forked process leaves it alone."""
        if self.owner != os.getpid():
            return
        self.is_lost = True
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.errors):
            if file is not None:
                file.close()


def _kill_all(workers: "list[Worker]") -> None:
    while workers:
        workers.pop().kill()


class Pool:
    """Judges pairs of gold and given answer. Processes start with the first question and end with the pool.

    Threads may share one: they take turns. A copy, in this process or sent to another, starts processes of its own.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, memory_bytes: int) -> None:
        self.num_workers = num_workers
        self.timeout_s = timeout_s
        self.memory_bytes = memory_bytes
        self._workers: list[Worker] = []
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._finalizer = weakref.finalize(self, _kill_all, self._workers)

    def __reduce__(self) -> tuple[Any, ...]:
        limits = {"num_workers": self.num_workers, "timeout_s": self.timeout_s, "memory_bytes": self.memory_bytes}
        return partial(Pool, **limits), ()

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """For each (gold, answer) one of ``right``, ``wrong``, ``timeout``, ``memory`` and ``crash``, in order.

        Raises:
            RewardError: the processes do not start.
        """
        requests = [b"".join(map(_framed, pair)) for pair in pairs]
        found: list[str] = [""] * len(pairs)
        self._forget_after_fork()
        with self._turn:
            try:
                self._start(min(self.num_workers, len(pairs)))
                self._run(requests, found)
            except BaseException:
                # A worker left in the middle of a question would answer the next one with it.
                _kill_all(self._workers)
                raise
        return found

    def close(self) -> None:
        """End all processes; the next question starts new ones."""
        self._forget_after_fork()
        with self._turn:
            _kill_all(self._workers)

    def _forget_after_fork(self) -> None:
        """The pipes belong to the process that opened them, and one of its threads may have held the turn."""
        if self._owner != os.getpid():
            self._workers.clear()
            self._turn = threading.Lock()
            self._owner = os.getpid()

    def _start(self, number: int) -> None:
        while len(self._workers) < number:
            self._workers.append(Worker(self.timeout_s, self.memory_bytes))

    def _run(self, requests: list[bytes], found: list[str]) -> None:
        waiting = deque(range(len(requests)))
        while True:
            for worker in self._workers:
                if worker.is_ready and worker.job is None and waiting:
                    job = waiting.popleft()
                    worker.give(job, requests[job])
            busy = [worker for worker in self._workers if worker.job is not None or not worker.is_ready]
            if not waiting and all(worker.job is None for worker in busy):
                return
            self._wait(busy, found)

    def _wait(self, busy: list[Worker], found: list[str]) -> None:
        """Until one of ``busy`` says something or is overdue."""
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.outlet, selectors.EVENT_READ, worker)
                if worker.unsent:
                    selector.register(worker.inlet, selectors.EVENT_WRITE, worker)
            until = min(worker.deadline for worker in busy)
            ready = selector.select(max(0.0, until - time.monotonic()))
        for key, _ in ready:
            worker = key.data
            if key.fd == worker.inlet:
                worker.send()
            else:
                self._settle(worker, worker.receive(), found=found)
        for worker in busy if not ready else ():
            if worker.deadline <= time.monotonic():
                self._end_overdue(worker, found)

    def _end_overdue(self, worker: Worker, found: list[str]) -> None:
        worker.kill()
        if not worker.is_ready:
            raise RewardError(f"the process that judges answers did not start within {_START_S:.0f} s")
        self._settle(worker, "timeout", found=found)

    def _settle(self, worker: Worker, said: str, *, found: list[str]) -> None:
        if worker.job is not None and said != "ready":
            found[worker.job], worker.job, worker.unsent = said, None, b""
        worker.deadline = time.monotonic() + _START_S
        if worker.is_lost:
            worker.kill()
            self._workers[self._workers.index(worker)] = Worker(self.timeout_s, self.memory_bytes)


def _framed(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return struct.pack(">I", len(data)) + data
