# SPDX-License-Identifier: Apache-2.0
"""Rows in worker processes, which are stepped while the policy answers others, and which may crash or hang."""

import logging
import os
import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from m2flow.config import Config
from m2flow.envs.base import Observations
from m2flow.envs.stepping.base import Stepper, Tick, require_divisor
from m2flow.envs.stepping.board import Board
from m2flow.envs.stepping.episodes import joined, taken
from m2flow.envs.stepping.process import Worker, WorkerLost
from m2flow.envs.stepping.serving import Job
from m2flow.errors import M2flowError, SimulatorError

log = logging.getLogger(__name__)

PATIENCE_S = 900.0
"""For a simulator's start, and for a replay."""
_MOST_LOST = 3
"""A worker whose rows are lost so often without ending an episode is not started again."""


class ParallelStepper(Stepper):
    """``num_rows`` rows in ``num_workers`` processes, each of which belongs to one of ``num_parts`` parts.

    Observations are views of memory that the workers write. Where a worker crashes or hangs, the episodes of its rows
    are lost, and the next ones begin in a new worker.

    Args:
        env: the Config of the environment.
        timeout_s: a tick that takes longer hangs.

    Raises:
        SimulatorError: the simulator cannot run here, or the rows cannot be cut so.
    """

    def __init__(
        self,
        env: Config,
        *,
        num_rows: int,
        num_workers: int,
        num_parts: int = 1,
        group_size: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__(num_rows=num_rows, num_parts=num_parts, group_size=group_size)
        require_divisor(num_rows, num_workers, what=f"equal shares of {num_workers} workers")
        if num_workers % num_parts:
            raise SimulatorError(f"{num_workers} workers cannot be shared out to {num_parts} parts: choose a multiple")
        self.env_name = env.owner.name
        size = num_rows // num_workers
        if env.owner.max_rows is not None and size > env.owner.max_rows:
            raise SimulatorError(
                f"{self.env_name} holds at most {env.owner.max_rows} rows in one process, {num_workers} workers would "
                f"hold {size} each: take more workers"
            )
        shared = {
            "env": {"name": self.env_name, **env.model_dump(mode="json")},
            "num_rows": num_rows,
            "group_size": group_size,
            "timeout_s": timeout_s,
            "patience_s": PATIENCE_S,
        }
        self._memory = os.memfd_create("m2flow-rows", os.MFD_CLOEXEC)
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers, self._memory, owner=os.getpid())
        for begin in range(0, num_rows, size):
            self._workers.append(Worker(Job(**shared, begin=begin, size=size), self._memory))
        interfaces = self._all("interface")
        if any(one != other for one, other in pairwise(interfaces)):
            raise SimulatorError(f"the rows of '{self.env_name}' have different interfaces: they must be alike")
        self.interface = interfaces[0]
        self._board = Board(self._memory, self.interface, num_rows=num_rows)

    def _all(self, name: str, *arguments: Any) -> list[Any]:
        """What all workers answer, who are asked at once."""
        for worker in self._workers:
            worker.ask(name, *arguments)
        return _required([worker.answer() for worker in self._workers])

    def _of(self, part: int) -> list[Worker]:
        share = len(self._workers) // self.num_parts
        return self._workers[part * share : (part + 1) * share]

    def _seen(self) -> list[Observations]:
        parts = [self.rows(part) for part in range(self.num_parts)]
        return [{name: array[rows] for name, array in self._board.seen.items()} for rows in parts]

    def _begin(self, seed: int) -> list[Observations]:
        self._all("reset", seed, 0)
        return self._seen()

    def _send(self, part: int, actions: np.ndarray) -> None:
        self._board.actions[self.rows(part)] = actions
        for worker in self._of(part):
            worker.send_tick()

    def _receive(self, part: int) -> Tick:
        board, rows = self._board, self.rows(part)
        lost = np.zeros(rows.stop - rows.start, bool)
        for worker in self._of(part):
            try:
                worker.wait_tick()
            except WorkerLost:
                self._restart(worker)
                lost[worker.rows.start - rows.start : worker.rows.stop - rows.start] = True
        (ended,) = np.nonzero(board.terminated[rows] | board.truncated[rows])
        if len(ended):
            self._praise(part, ended + rows.start)
        return Tick(
            observations=self.observations[part],
            rewards=board.rewards[rows],
            terminated=board.terminated[rows],
            truncated=board.truncated[rows],
            ended=ended,
            final_observations={name: array[rows][ended] for name, array in board.final.items()},
            lost=lost,
            episodes=board.episodes((ended + rows.start).tolist()),
        )

    def _praise(self, part: int, ended: np.ndarray) -> None:
        for worker in self._of(part):
            if ((ended >= worker.rows.start) & (ended < worker.rows.stop)).any():
                worker.num_lost = 0

    def _restart(self, lost: Worker) -> None:
        """A new worker for the rows of ``lost``, with the episodes after those."""
        why, rows, board = lost.last_words(), lost.rows, self._board
        log.warning("%s was lost with the episodes of its rows, and starts anew: %s", lost.describe(), why)
        lost.kill()
        if lost.num_lost + 1 >= _MOST_LOST:
            raise SimulatorError(
                f"{lost.describe()} was lost {_MOST_LOST} times without an episode that ended in between: mend the "
                f"simulator. The last time: {why}"
            )
        worker = Worker(lost.job, self._memory)
        worker.num_lost = lost.num_lost + 1
        self._workers[self._workers.index(lost)] = worker
        worker.ask("reset", self.seed, board.num_begun[rows].tolist())
        _required([worker.answer()])
        board.rewards[rows] = 0
        board.terminated[rows] = board.truncated[rows] = False

    def render(self, row: int) -> np.ndarray:
        """See ``Stepper.render``."""
        worker = next(worker for worker in self._workers if worker.rows.start <= row < worker.rows.stop)
        worker.ask("render", row - worker.rows.start)
        return _required([worker.answer()])[0]

    def _rows_state(self) -> dict[str, list[Any]]:
        return joined(self._all("state"))

    def _load(self, state: Mapping[str, Any]) -> list[Observations]:
        for worker in self._workers:
            worker.ask("load_state", self.seed, taken(state, worker.rows))
        _required([worker.answer() for worker in self._workers])
        return self._seen()

    def close(self) -> None:
        """See ``Stepper.close``."""
        self._finalizer()


def _required(answers: list[Any]) -> list[Any]:
    """``answers``; all have been read before the first error among them is raised."""
    for error in answers:
        if isinstance(error, M2flowError):
            raise error
    return answers


def _end(workers: list[Worker], memory: int, *, owner: int) -> None:
    """End all of them; a copy of the stepper in a forked process leaves them alone."""
    if owner != os.getpid():
        return
    for worker in workers:
        worker.leave()
    while workers:
        workers.pop().close()
    os.close(memory)
