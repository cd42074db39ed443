# SPDX-License-Identifier: Apache-2.0
"""What steps an environment: all rows of a run, wherever their simulators are, with autoreset and episodes counted.

An episode's seed is a pure function of (run seed, row, number of the episode in this row), so that it depends neither
on how rows are split over workers nor on what other rows do. A simulator is a pure function of (seed, actions): saving
those of the unfinished episodes is saving the environment, and replaying them is loading it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from m2flow.data.trajectories import Episode
from m2flow.envs.base import Observations
from m2flow.spec import Interface


@dataclass(frozen=True, kw_only=True)
class Tick:
    """One tick of a part of the rows (``B`` of them), after autoreset. Arrays may be reused at the part's next tick."""

    observations: Observations
    """[B, ...] that the next actions answer: of a new episode where the old one ended."""
    rewards: np.ndarray
    """[B] float32."""
    terminated: np.ndarray
    """[B] bool."""
    truncated: np.ndarray
    """[B] bool."""
    ended: np.ndarray
    """[E] int64: the places within the part where an episode ended in this tick."""
    final_observations: Observations
    """[E, ...] that those ended with."""
    lost: np.ndarray
    """[B] bool: the row's simulator crashed or hung, and a new episode has begun; nothing of this tick is to be
    learned from, nor of the rest of the lost episode."""
    episodes: Sequence[Episode] = ()
    """Those that ended in this tick, by row."""


class Stepper(ABC):
    """All ``num_rows`` rows, in ``num_parts`` equal parts that can be in flight at once."""

    num_rows: int
    num_parts: int
    group_size: int
    """Of so many rows, one after another, equal numbers of episodes begin in equal states."""
    interface: Interface
    seed: int
    """Of the last ``reset``."""
    observations: list[Observations]
    """Of each part, those that its next actions answer; empty before the first ``reset``."""
    num_ticks: list[int]
    """Of each part since the last ``reset``."""

    def rows(self, part: int) -> slice:
        """Which rows ``part`` holds."""
        size = self.num_rows // self.num_parts
        return slice(part * size, (part + 1) * size)

    @abstractmethod
    def reset(self, seed: int) -> list[Observations]:
        """Begin anew with the first episodes of ``seed``; the observations of each part.

        Unfinished episodes are not counted.
        """

    @abstractmethod
    def send(self, part: int, actions: np.ndarray) -> None:
        """Begin a tick of ``part`` [B, ...]; returns at once where workers step it.

        Raises:
            SimulatorError: the part is in flight already, or the actions are not as ``interface.action`` says.
        """

    @abstractmethod
    def receive(self, part: int) -> Tick:
        """Wait for the tick of ``part`` that was sent."""

    @abstractmethod
    def render(self, row: int) -> np.ndarray:
        """See ``Env.render``."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Seeds and actions of the unfinished episodes, and counters; no part may be in flight."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> list[Observations]:
        """Replay what ``state`` returned; the observations of each part, bit for bit those of then.

        Raises:
            CheckpointError: it belongs to another number of rows or another environment.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers; a second call does nothing."""
