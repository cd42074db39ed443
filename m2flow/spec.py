# SPDX-License-Identifier: Apache-2.0
"""What an environment and a policy say of themselves: the only thing that either knows of the other.

Each can be faked from it, so that a policy is tested without the simulator, and a simulator without the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Bound = float | tuple[float, ...]
"""One limit for all entries, or one for each entry of a flat array."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One named array of an observation or an action, without its leading axis of environments."""

    name: str
    shape: tuple[int, ...]
    """Of one environment's array; ``()`` is a single number."""
    dtype: str = "float32"
    """A numpy name. ``uint8`` with three axes is an image [height, width, channels]; ``U256`` is a text of at
    most 256 characters, such as an instruction."""
    unit: str = ""
    """Of its entries: ``m``, ``rad``, ``m/s``; empty where they differ or have none."""
    low: Bound = -np.inf
    high: Bound = np.inf
    """Limits, both included. A discrete action is ``int64`` from 0 to ``high``."""
    frame: str = ""
    """What positions and rotations are relative to; of an image, its camera."""

    @property
    def is_image(self) -> bool:
        """Whether this is a picture of a camera."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_discrete(self) -> bool:
        """Whether this is one of a finite number of choices."""
        return np.dtype(self.dtype).kind in "iu" and self.shape == () and bool(np.isfinite(self.high))

    @property
    def num_values(self) -> int:
        """How many choices there are, where they are finite."""
        return int(np.max(self.high)) + 1

    def fake(self, rng: np.random.Generator, leading: Sequence[int] = ()) -> np.ndarray:
        """An array that could be this one: uniform within finite limits, normal where there are none."""
        shape = (*leading, *self.shape)
        if np.dtype(self.dtype).kind == "U":
            return np.full(shape, "reach the goal")
        low, high = np.broadcast_to(self.low, self.shape), np.broadcast_to(self.high, self.shape)
        if self.dtype == "uint8":
            return rng.integers(0, 256, shape, dtype=np.uint8)
        if np.dtype(self.dtype).kind in "iu":
            return rng.integers(low, high, shape, endpoint=True).astype(self.dtype)
        bounded = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(np.where(bounded, low, 0.0), np.where(bounded, high, 1.0), shape)
        free = np.clip(rng.standard_normal(shape), low, high)
        return np.where(bounded, uniform, free).astype(self.dtype)


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What a policy sees of an environment and does to it."""

    observations: tuple[Spec, ...]
    action: Spec
    max_episode_ticks: int | None = None
    """After so many ticks an episode is truncated; ``None``: never."""
    tick_s: float | None = None
    """Time between two actions in the simulated world, where it is known."""
