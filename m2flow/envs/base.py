# SPDX-License-Identifier: Apache-2.0
"""What a simulator is: some copies of a task that are stepped together, and that never reset by themselves.

``N`` is the number of copies, called rows. When an episode ends, whoever steps the rows resets them; so the observation
that an episode ended with is always at hand, and what autoreset does is written in one place (``envs.stepping``).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from m2flow.registry import Plugin
from m2flow.spec import Interface, Spec

Observations = Mapping[str, np.ndarray]
"""Arrays by the name of their Spec, with a leading axis of rows."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one tick of all rows led to."""

    observations: Observations
    """[N, ...] of the states reached: where an episode ended, the one it ended with."""
    rewards: np.ndarray
    """[N] float32."""
    terminated: np.ndarray
    """[N] bool: the task itself ended the episode (success, failure); nothing would follow."""
    truncated: np.ndarray
    """[N] bool: a limit that is no part of the task ended it; its value goes on."""
    success: np.ndarray | None = None
    """[N] bool: whether the task is solved in the state reached; ``None`` where the task defines no success."""


class Env(Plugin, ABC):
    """``num_rows`` copies of one task in one process."""

    max_rows: ClassVar[int | None] = None
    """How many copies one process can hold (1 for simulators that misbehave with two); ``None``: any number."""
    is_slow: ClassVar[bool] = False
    """Whether a tick takes so long that worker processes pay, unless the user says otherwise."""

    def __init__(self, config: Any, num_rows: int) -> None:
        self.config = config
        self.num_rows = num_rows

    @property
    @abstractmethod
    def interface(self) -> Interface:
        """What is observed and done; the same for all rows."""

    @abstractmethod
    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        """Begin an episode in each of ``rows``; equal seeds begin equal episodes, whatever ran before.

        Returns:
            Arrays [len(rows), ...].

        Raises:
            SimulatorError: the simulator cannot run here; the message says what is missing.
        """

    @abstractmethod
    def step(self, actions: np.ndarray) -> Outcome:
        """One tick of every row with its action [N, ...], which is within the limits of ``interface.action``."""

    @abstractmethod
    def render(self, row: int) -> np.ndarray:
        """A picture [height, width, 3] uint8 of a row for people, upright.

        Raises:
            SimulatorError: the simulator cannot draw here.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the simulator holds; a second call does nothing."""

    @classmethod
    def doctor(cls) -> list[str]:
        """What this machine lacks to run the simulator, each with the command that mends it; empty if nothing."""
        return []


def stacked(seen: Sequence[Observations]) -> dict[str, np.ndarray]:
    """[N, ...] of what ``N`` rows observe, each alone."""
    return {name: np.stack([one[name] for one in seen]) for name in seen[0]}


def spec_of(name: str, array: np.ndarray) -> Spec:
    """Of an array like ``array``: a picture of the camera ``name``, or numbers without limits."""
    if array.dtype == np.uint8:
        return Spec(name=name, shape=array.shape, dtype="uint8", low=0.0, high=255.0, frame=name)
    return Spec(name=name, shape=array.shape)


def draw_without_screen() -> None:
    """Let MuJoCo draw by EGL where there is no screen and ``MUJOCO_GL`` does not say how; call it before its import."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")
