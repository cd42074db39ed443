# SPDX-License-Identifier: Apache-2.0
"""One worker as the process sees it that it steps for."""

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO, Any

from m2flow.envs.stepping.serving import TICK, Job
from m2flow.errors import SimulatorError

_CALL = b"call"
_GRACE_S = 5.0
"""A worker that its own alarm has not ended so long after its time is killed from here."""
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Workers share the cores already: more threads in each only fight over them."""


class WorkerLost(Exception):
    """The worker has crashed or hung."""


class Worker:
    """A process that steps the rows of ``job``, with what it shares of ``memory``, the descriptor of a file."""

    def __init__(self, job: Job, memory: int) -> None:
        self.job = job
        self.num_lost = 0
        """Times that its rows were lost since one of them last ended an episode."""
        ours, theirs = socket.socketpair()
        # What is read without a poll first waits no longer than for a tick.
        patience = struct.pack("ll", int(job.timeout_s + _GRACE_S) + 1, 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the worker lives)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "m2flow.envs.stepping.serving", str(theirs.fileno()), str(memory)],
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=self.said,
            pass_fds=(theirs.fileno(), memory),
            start_new_session=True,
            env={
                **os.environ,
                **dict.fromkeys(_ONE_THREAD, "1"),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.connection.send(job)

    @property
    def rows(self) -> slice:
        """Which it steps."""
        return slice(self.job.begin, self.job.begin + self.job.size)

    def send_tick(self) -> None:
        """Ask for a tick; a worker that is dead is noticed when it is waited for."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(TICK)

    def wait_tick(self) -> None:
        """Until the tick is done.

        Raises:
            WorkerLost: it is not.
        """
        try:
            self.connection.recv_bytes()
        except (EOFError, ConnectionResetError, BlockingIOError):
            raise WorkerLost from None

    def ask(self, name: str, *arguments: Any) -> None:
        """Call a method of the worker's rows; ``answer`` waits for it."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(_CALL)
            self.connection.send((name, arguments))

    def answer(self) -> Any:
        """What the method returned, or the error that it raised; one of its own if the worker crashed or hung."""
        try:
            if self.connection.poll(self.job.patience_s + _GRACE_S):
                return self.connection.recv()
        except (EOFError, ConnectionResetError):
            pass
        return SimulatorError(f"{self.describe()} ended while it was asked for something: {self.last_words()}")

    def describe(self) -> str:
        """For an error message."""
        last = self.job.begin + self.job.size - 1
        rows = f"row {last}" if self.job.size == 1 else f"rows {self.job.begin} to {last}"
        return f"the process that steps {rows} of '{self.job.env['name']}'"

    def last_words(self) -> str:
        """Why it ended: the end of what it printed, and its exit code; kills it if it has not ended."""
        self._end()
        self.said.seek(0)
        text = self.said.read().decode(errors="replace").strip()[-2000:]
        code = self.process.returncode
        why = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        why += f" (it hung for more than {self.job.timeout_s:g} s)" if -code == signal.SIGALRM else ""
        return f"{why}\n{text}" if text else why

    def leave(self) -> None:
        """Let it end by itself."""
        self.connection.close()

    def close(self) -> None:
        """Wait a little until it has ended by itself, and end it then."""
        self.leave()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_GRACE_S)
        self._end()
        self.said.close()

    def kill(self) -> None:
        """End it at once."""
        self.leave()
        self._end()
        self.said.close()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
