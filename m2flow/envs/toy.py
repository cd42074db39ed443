# SPDX-License-Identifier: Apache-2.0
"""A point that is pushed to a goal on a plane, in numpy: for tests, and for a first run in seconds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from m2flow.config import Config
from m2flow.envs.base import Env, Observations, Outcome
from m2flow.spec import Interface, Spec

_BLUE, _RED = np.array([40, 90, 200], np.uint8), np.array([200, 50, 40], np.uint8)


class Toy(Env):
    """Observed: the way to the goal and the velocity. Done: a push. Success: within 0.1 m of the goal."""

    class Config(Config):
        """Options of ``toy``."""

        max_episode_ticks: int = Field(default=50, ge=1)
        """After so many ticks an episode is truncated."""
        tick_s: float = Field(default=0.1, gt=0)
        """Simulated time of one tick, seconds."""
        ends_on_success: bool = True
        """Whether reaching the goal terminates the episode."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self._position_m = np.zeros((num_rows, 2))
        self._velocity = np.zeros((num_rows, 2))
        self._num_ticks = np.zeros(num_rows, np.int64)

    @property
    def interface(self) -> Interface:
        """Two entries along x and y everywhere; the goal is the origin of the frame ``goal``."""
        return Interface(
            observations=(
                Spec(name="position", shape=(2,), unit="m", frame="goal"),
                Spec(name="velocity", shape=(2,), unit="m/s", frame="goal"),
            ),
            action=Spec(name="push", shape=(2,), low=-1.0, high=1.0, frame="goal"),
            max_episode_ticks=self.config.max_episode_ticks,
            tick_s=self.config.tick_s,
        )

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        """Between 0.5 and 1 m from the goal, at rest."""
        for row, seed in zip(rows, seeds, strict=True):
            rng = np.random.default_rng(seed)
            angle_rad, distance_m = rng.uniform(0, 2 * np.pi), rng.uniform(0.5, 1.0)
            self._position_m[row] = distance_m * np.array([np.cos(angle_rad), np.sin(angle_rad)])
        self._velocity[list(rows)], self._num_ticks[list(rows)] = 0.0, 0
        return {name: array[list(rows)] for name, array in self._observed().items()}

    def step(self, actions: np.ndarray) -> Outcome:
        """A push, at most 4 m/s^2 along each axis, against friction; the reward is minus the distance left, in m."""
        tick_s = self.config.tick_s
        self._velocity += tick_s * (4.0 * np.asarray(actions, np.float64) - self._velocity)
        self._position_m += tick_s * self._velocity
        self._num_ticks += 1
        distance_m = np.linalg.norm(self._position_m, axis=1)
        success = distance_m < 0.1
        terminated = success & self.config.ends_on_success
        return Outcome(
            observations=self._observed(),
            rewards=-distance_m.astype(np.float32),
            terminated=terminated,
            truncated=~terminated & (self._num_ticks >= self.config.max_episode_ticks),
            success=success,
        )

    def render(self, row: int) -> np.ndarray:
        """Four metres square seen from above: the goal red, the point blue."""
        picture = np.full((128, 128, 3), 255, np.uint8)
        picture[61:67, 61:67] = _RED
        x, y = np.clip(64 + 32 * self._position_m[row] * (1, -1), 3, 124).astype(int)
        picture[y - 3 : y + 3, x - 3 : x + 3] = _BLUE
        return picture

    def close(self) -> None:
        """Nothing is held."""

    def _observed(self) -> dict[str, np.ndarray]:
        return {"position": self._position_m.astype(np.float32), "velocity": self._velocity.astype(np.float32)}
