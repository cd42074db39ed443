# SPDX-License-Identifier: Apache-2.0
"""The role that is acted in: rows of one environment, stepped wherever they are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from m2flow.config import Config
from m2flow.envs.stepping.base import Stepper
from m2flow.envs.stepping.parallel import ParallelStepper
from m2flow.envs.stepping.serial import SerialStepper
from m2flow.registry import EnvConfig, build
from m2flow.spec import Interface


class _Parts(Config):
    """Checks what an environment is made of."""

    env: EnvConfig
    """Which simulator and task."""


class Env:
    """``num_rows`` copies of an environment, which a ``Rollout`` acts in.

    Args:
        env: an id (``"toy"``), a mapping of its ``name`` and options, or its Config.
        num_rows: how many copies.
        num_workers: processes that step them, equal shares each; 0 steps them in this process, where an error or a
            breakpoint in a simulator stops. Left out, 0 for simulators that are fast; else as many as there are cores.
        num_parts: in how many equal parts they are stepped, one while the policy answers another.
        group_size: of so many rows, one after another, equal numbers of episodes begin in equal states.
        timeout_s: in workers, a tick that takes longer hangs: its episode is lost, and counted.

    Raises:
        ConfigError: no such environment, or an option that it does not have.
    """

    context: Any = None
    max_slots = 1

    def __init__(
        self,
        env: Any,
        *,
        num_rows: int = 8,
        num_workers: int | None = None,
        num_parts: int = 1,
        group_size: int = 1,
        timeout_s: float = 60.0,
    ) -> None:
        parts: Any = _Parts.from_dict({"env": env})
        self.config = parts.env
        self.num_workers = _num_workers(self.config, num_rows) if num_workers is None else num_workers
        self.timeout_s = timeout_s
        self._cut = {"num_rows": num_rows, "num_parts": num_parts, "group_size": group_size}

    @cached_property
    def stepper(self) -> Stepper:
        """What steps the rows; made when first used.

        Raises:
            SimulatorError: the simulator cannot run here, or the rows cannot be cut so.
        """
        if not self.num_workers:
            return SerialStepper(lambda num_rows: build(self.config, num_rows), **self._cut)
        return ParallelStepper(self.config, num_workers=self.num_workers, timeout_s=self.timeout_s, **self._cut)

    @property
    def interface(self) -> Interface:
        """What is observed and done."""
        return self.stepper.interface

    def begin(self, seed: int, *, anew: bool = False) -> None:
        """Put every row in front of its first state, if it is in front of none yet; ``anew``: of new episodes."""
        stepper = self.stepper
        if not stepper.observations:
            stepper.reset(seed)
        elif anew:
            stepper.reset(_next(stepper.seed))

    @contextmanager
    def elsewhere(self, seed: int) -> Iterator[None]:
        """The rows begin with ``seed``, and afterwards go on where they were, as if nothing had happened."""
        before = self.state()
        self.stepper.reset(seed)
        yield
        self.load_state(before)

    def state(self) -> dict[str, Any]:
        """Seeds and actions of the unfinished episodes, which ``load_state`` replays; empty before the first."""
        return {"stepper": self.stepper.state() if self.stepper.observations else None}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it belongs to another environment, or the simulator does not repeat itself.
        """
        if state["stepper"] is None:
            self.stepper.observations = []
        else:
            self.stepper.load_state(state["stepper"])

    def close(self) -> None:
        """Free what the simulators hold."""
        if "stepper" in vars(self):
            self.stepper.close()


def _num_workers(config: Config, num_rows: int) -> int:
    """As few as hold all rows; of simulators that are slow, as many equal shares as there are cores."""
    kind = config.owner
    fewest = num_rows // kind.max_rows if kind.max_rows else 0
    if not kind.is_slow:
        return fewest
    cores = len(os.sched_getaffinity(0))
    return max(fewest, *(num for num in range(1, num_rows + 1) if num_rows % num == 0 and num <= cores))


def _next(seed: int) -> int:
    """The seed of the episodes after those of ``seed``."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
