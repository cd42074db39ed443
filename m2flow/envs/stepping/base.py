# SPDX-License-Identifier: Apache-2.0
"""What steps an environment: all rows of a run, wherever their simulators are, with autoreset and episodes counted.

An episode's seed is a pure function of (run seed, row, number of the episode in this row), so that it depends neither
on how rows are split over workers nor on what other rows do. A simulator is a pure function of (seed, actions): saving
those of the unfinished episodes is saving the environment, and replaying them is loading it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from m2flow.data.trajectories import Episode
from m2flow.envs.base import Observations
from m2flow.errors import CheckpointError, SimulatorError
from m2flow.spec import Interface, Spec


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
    """All ``num_rows`` rows, in ``num_parts`` equal parts that can be in flight at once.

    Raises:
        SimulatorError: rows that cannot be cut so.
    """

    env_name: str
    interface: Interface
    seed: int
    """Of the last ``reset``."""
    observations: list[Observations]
    """Of each part, those that its next actions answer; empty before the first ``reset``."""
    num_ticks: list[int]
    """Of each part since the last ``reset``."""

    def __init__(self, *, num_rows: int, num_parts: int, group_size: int) -> None:
        require_divisor(num_rows, num_parts, what=f"{num_parts} equal parts")
        require_divisor(num_rows, group_size, what=f"groups of {group_size}")
        self.num_rows, self.num_parts, self.group_size = num_rows, num_parts, group_size
        self.seed, self.observations, self.num_ticks = 0, [], [0] * num_parts
        self._flying = [False] * num_parts

    def rows(self, part: int) -> slice:
        """Which rows ``part`` holds."""
        size = self.num_rows // self.num_parts
        return slice(part * size, (part + 1) * size)

    def reset(self, seed: int) -> list[Observations]:
        """Begin anew with the first episodes of ``seed``; the observations of each part.

        Unfinished episodes are not counted.
        """
        self._require_landed("a reset")
        self.seed, self.num_ticks = seed, [0] * self.num_parts
        self.observations = self._begin(seed)
        return self.observations

    def send(self, part: int, actions: np.ndarray) -> None:
        """Begin a tick of ``part`` [B, ...]; returns at once where workers step it.

        Raises:
            SimulatorError: the part is in flight already, or the actions are not as ``interface.action`` says.
        """
        if self._flying[part]:
            raise SimulatorError(f"part {part} is in flight already: receive its tick before the next is sent")
        self._send(part, checked(actions, self.interface.action, num_rows=self.num_rows // self.num_parts))
        self._flying[part] = True

    def receive(self, part: int) -> Tick:
        """Wait for the tick of ``part`` that was sent."""
        if not self._flying[part]:
            raise SimulatorError(f"nothing was sent to part {part}: send actions before its tick is received")
        self._flying[part] = False
        tick = self._receive(part)
        self.observations[part] = tick.observations
        self.num_ticks[part] += 1
        return tick

    def state(self) -> dict[str, Any]:
        """Seeds and actions of the unfinished episodes, and counters, row by row; no part may be in flight."""
        self._require_landed("taking the state")
        if not self.observations:
            raise SimulatorError("no episode has begun: reset before the state is taken")
        return {
            "env": self.env_name,
            "seed": self.seed,
            "group_size": self.group_size,
            "num_ticks": list(self.num_ticks),
            **self._rows_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> list[Observations]:
        """Replay what ``state`` returned; the observations of each part, bit for bit those of then.

        The rows may be cut into other parts and other workers than they were.

        Raises:
            CheckpointError: it belongs to another number of rows or another environment, or the simulator does not
                repeat itself.
        """
        self._require_landed("loading a state")
        own = (self.env_name, self.num_rows, self.group_size)
        saved = (state["env"], len(state["num_begun"]), state["group_size"])
        if own != saved:
            raise CheckpointError(
                "the checkpoint is of {} in {} rows in groups of {}, ".format(*saved)
                + "here is {} in {} rows in groups of {}: resume with those that it had".format(*own)
            )
        self.num_ticks = self._recut([int(num) for num in state["num_ticks"]])
        self.seed = int(state["seed"])
        self.observations = self._load(state)
        return self.observations

    def _recut(self, num_ticks: list[int]) -> list[int]:
        if len(num_ticks) == self.num_parts:
            return num_ticks
        if len(set(num_ticks)) > 1:
            raise CheckpointError(
                f"the checkpoint's parts have made {num_ticks} ticks, which cannot be cut into {self.num_parts} parts: "
                f"resume with {len(num_ticks)}"
            )
        return num_ticks[:1] * self.num_parts

    def _require_landed(self, what: str) -> None:
        if flying := [part for part, is_flying in enumerate(self._flying) if is_flying]:
            raise SimulatorError(f"parts {flying} are in flight: receive their ticks before {what}")

    @abstractmethod
    def _begin(self, seed: int) -> list[Observations]:
        """The first episodes of ``seed``."""

    @abstractmethod
    def _send(self, part: int, actions: np.ndarray) -> None:
        """Checked actions [B, ...]."""

    @abstractmethod
    def _receive(self, part: int) -> Tick:
        """See ``receive``."""

    @abstractmethod
    def _rows_state(self) -> dict[str, list[Any]]:
        """``Rows.state`` of all rows."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> list[Observations]:
        """``Rows.load_state`` of all rows."""

    @abstractmethod
    def render(self, row: int) -> np.ndarray:
        """See ``Env.render``."""

    @abstractmethod
    def close(self) -> None:
        """Free what the simulators hold; a second call does nothing."""


def require_divisor(num_rows: int, num: int, *, what: str) -> None:
    """Refuse to cut ``num_rows`` by ``num``.

    Raises:
        SimulatorError: it is no divisor.
    """
    if not 1 <= num <= num_rows or num_rows % num:
        raise SimulatorError(f"{num_rows} rows cannot be cut into {what}: choose a divisor of {num_rows}")


def checked(actions: np.ndarray, spec: Spec, *, num_rows: int) -> np.ndarray:
    """``actions`` in the type that ``spec`` says.

    Raises:
        SimulatorError: another shape than [num_rows, ...], or entries that are not finite or out of its limits.
    """
    wanted, given = (num_rows, *spec.shape), np.asarray(actions)
    if given.shape != wanted:
        raise SimulatorError(f"actions have the shape {given.shape}, '{spec.name}' of {num_rows} rows has {wanted}")
    if np.dtype(spec.dtype).kind in "iu" and given.dtype.kind not in "iu":
        raise SimulatorError(f"actions are {given.dtype}, '{spec.name}' takes whole numbers ({spec.dtype})")
    inside = (given >= spec.low) & (given <= spec.high)
    if not inside.all():
        # Comparisons with NaN are false, so that it is found here too.
        row = int(np.argwhere(~inside)[0][0])
        raise SimulatorError(
            f"the action {given[row].tolist()} of row {row} is not within the limits {spec.low} to {spec.high} of "
            f"'{spec.name}': clip or squash what the policy draws"
        )
    return given.astype(spec.dtype, copy=False)
