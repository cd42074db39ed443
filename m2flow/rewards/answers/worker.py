# SPDX-License-Identifier: Apache-2.0
"""The process that judges answers: ``python -m m2flow.rewards.answers.worker PARENT_PID TIMEOUT_S MEMORY_BYTES``.

Two processes, in fact. The *keeper* imports everything once and forks a *judge*, which reads requests, writes verdicts
and may end at any moment: by its own alarm, by its memory limit, by a crash in an interpreter that a hostile answer
drove too deep. The keeper, which never sees an answer, then reports what happened and forks the next one, in
milliseconds. Only after a crash it ends as well: the judge may have died in the middle of a request.

A request is two texts, each as a length (4 bytes, big-endian) and that much UTF-8; a reply is one byte
(``pool.REPLIES``).
"""

import os
import resource
import select
import signal
import struct
import sys

from m2flow.rewards.answers.second_opinion import second_opinion
from m2flow.rewards.answers.tree import Unfamiliar
from m2flow.rewards.answers.verdict import same_answer, same_spelling

_RECURSION_LIMIT = 20_000
_OUT_OF_MEMORY = 3
_POLL_S = 5.0
"""How often an idle judge looks whether its parent still lives."""


def judge(gold: str, answer: str) -> bool:
    """The verdict on one answer."""
    try:
        return same_answer(gold, answer)
    except Unfamiliar:
        return same_spelling(gold, answer) or second_opinion(gold, answer)


def _read(size: int, parent: int) -> bytes:
    data = b""
    while len(data) < size:
        while not select.select([0], [], [], _POLL_S)[0]:
            os.kill(parent, 0)
        part = os.read(0, size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _read_text(parent: int) -> str:
    (size,) = struct.unpack(">I", _read(4, parent))
    return _read(size, parent).decode("utf-8", "replace")


def serve(parent: int, *, timeout_s: float, memory_bytes: int) -> None:
    """Judge until the parent closes the pipe or dies."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sys.setrecursionlimit(_RECURSION_LIMIT)
    while True:
        try:
            gold, answer = _read_text(parent), _read_text(parent)
        except (EOFError, ProcessLookupError):
            return
        # The default action of the alarm ends the process, also inside a long operation in C.
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            right = judge(gold, answer)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(1, b"1" if right else b"0")


def _run_judge(parent: int, *, timeout_s: float, memory_bytes: int) -> None:
    """The forked process, from its first to its last statement: it must never return into the keeper's code."""
    code = 1
    try:
        serve(parent, timeout_s=timeout_s, memory_bytes=memory_bytes)
        code = 0
    finally:
        os._exit(code)


def _reply(status: int) -> bytes | None:
    """What a judge's end means; ``None``: it was done."""
    if os.WIFSIGNALED(status):
        return b"T" if os.WTERMSIG(status) == signal.SIGALRM else b"C"
    return {0: None, _OUT_OF_MEMORY: b"M"}.get(os.WEXITSTATUS(status), b"C")


def keep(parent: int, *, timeout_s: float, memory_bytes: int) -> None:
    """Fork judges, one after another, until the parent has no more questions or a judge crashes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.write(1, b"R")
    while True:
        pid = os.fork()
        if pid == 0:
            _run_judge(parent, timeout_s=timeout_s, memory_bytes=memory_bytes)
        reply = _reply(os.waitpid(pid, 0)[1])
        if reply is None:
            return
        os.write(1, reply)
        if reply == b"C":
            return


if __name__ == "__main__":
    keep(int(sys.argv[1]), timeout_s=float(sys.argv[2]), memory_bytes=int(sys.argv[3]))
