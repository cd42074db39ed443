# SPDX-License-Identifier: Apache-2.0
"""A process that steps some rows: ``python -m m2flow.envs.stepping.serving SOCKET MEMORY``, two descriptors.

The first message says what to step, ``Job``. Afterwards one empty message stands for a tick, whose arrays are in the
shared memory, and is answered by one; everything else is a method of ``_Rows`` with its arguments, answered by what it
returns, or by an error that its asker is to raise. An error in a tick ends the process, as a crash would.

A simulator that hangs cannot even be interrupted by Python: an alarm ends the process then, whether or not there is
still somebody who waits for it.
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from m2flow.envs.stepping.board import Board
from m2flow.envs.stepping.episodes import Rows
from m2flow.errors import M2flowError
from m2flow.registry import build, choose
from m2flow.spec import Interface

TICK = b""
"""Asks for a tick, and says that it is done."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker steps."""

    env: dict[str, Any]
    """Name and options of the environment."""
    begin: int
    """The first of its rows."""
    size: int
    """How many rows it has."""
    num_rows: int
    """How many there are in all workers together."""
    group_size: int
    timeout_s: float
    """For one tick."""
    patience_s: float
    """For everything else."""


class _Rows:
    def __init__(self, job: Job, memory: int) -> None:
        self.env = build(choose("envs", job.env), job.size)
        self.board = Board(memory, self.env.interface, num_rows=job.num_rows)
        self.own = slice(job.begin, job.begin + job.size)
        numbers = range(job.num_rows)[self.own]
        begun = self.board.num_begun[self.own]
        self.rows = Rows(self.env, numbers, group_size=job.group_size, num_begun=begun)

    def tick(self) -> None:
        board, own = self.board, self.own
        tick = self.rows.tick(board.actions[own])
        board.rewards[own] = tick.rewards
        board.terminated[own], board.truncated[own] = tick.terminated, tick.truncated
        self._show(tick.observations)
        for name, array in tick.final_observations.items():
            board.final[name][own][tick.ended] = array
        for episode in tick.episodes:
            board.write_episode(episode)

    def _show(self, observations: Mapping[str, np.ndarray]) -> None:
        for name, array in observations.items():
            self.board.seen[name][self.own] = array

    def interface(self) -> Interface:
        return self.env.interface

    def reset(self, seed: int, skip: Sequence[int] | int) -> None:
        self._show(self.rows.reset(seed, skip=skip))

    def state(self) -> dict[str, list[Any]]:
        return self.rows.state()

    def load_state(self, seed: int, state: Mapping[str, Sequence[Any]]) -> None:
        self._show(self.rows.load_state(seed, state))

    def render(self, place: int) -> np.ndarray:
        return self.env.render(place)

    def close(self) -> None:
        self.env.close()


def serve(connection: Connection, memory: int) -> None:
    """Until the other side closes."""
    job: Job = connection.recv()
    signal.setitimer(signal.ITIMER_REAL, job.patience_s)
    try:
        rows = _Rows(job, memory)
    except M2flowError as error:
        connection.send(error)
        return
    while True:
        # Nobody waits for an answer now: this may take as long as it likes.
        signal.setitimer(signal.ITIMER_REAL, 0)
        asked = connection.recv_bytes()
        if asked == TICK:
            signal.setitimer(signal.ITIMER_REAL, job.timeout_s)
            rows.tick()
            connection.send_bytes(TICK)
        else:
            signal.setitimer(signal.ITIMER_REAL, job.patience_s)
            connection.send(_answer(rows, connection))


def _answer(rows: _Rows, connection: Connection) -> Any:
    name, arguments = connection.recv()
    try:
        return getattr(rows, name)(*arguments)
    except M2flowError as error:
        return error


if __name__ == "__main__":
    try:
        serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
    except EOFError:
        # The other side has closed.
        sys.exit()
