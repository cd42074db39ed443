# SPDX-License-Identifier: Apache-2.0
"""What flows between the roles of a control run: ticks of environments, and the episodes that ended in them.

``T`` is the number of ticks, ``N`` the number of environments (rows). Arrays are numpy, as those of ``samples``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode from its reset to its end."""

    row: int
    seed: int
    total_reward: float
    """Sum of its rewards, undiscounted."""
    num_ticks: int
    success_once: bool | None
    """Whether the task was solved in any state; ``None`` where it defines no success."""
    success_at_end: bool | None
    """Whether the task was solved in the last state."""
    truncated: bool
    """Ended by a limit, not by the task."""


@dataclass(kw_only=True)
class Trajectories:
    """``T`` ticks of ``N`` environments, episodes beginning and ending anywhere in them."""

    observations: Mapping[str, np.ndarray]
    """[T, N, ...] that each action answered."""
    actions: np.ndarray
    """[T, N, ...] as the policy drew them."""
    logprobs: np.ndarray
    """[T, N] float32: of those actions, nats."""
    rewards: np.ndarray
    """[T, N] float32."""
    terminated: np.ndarray
    """[T, N] bool."""
    truncated: np.ndarray
    """[T, N] bool."""
    mask: np.ndarray
    """[T, N] bool: ticks that may be learned from; those of a lost episode may not."""
    last_observations: Mapping[str, np.ndarray]
    """[N, ...] after the last tick."""
    final_observations: Mapping[str, np.ndarray]
    """[E, ...] that the episodes ended with, in the order of ``ended``."""
    ended: np.ndarray
    """[E, 2] int64: tick and row of each episode's end."""
    versions: np.ndarray
    """[T, N] int32: weights that chose each action."""
    group_ids: np.ndarray
    """[N] int64: rows of one group began in the same state."""
    whole_episodes: bool = False
    """Whether every row's counted ticks are whole episodes, from reset to end."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that ended within these ticks."""
    num_lost: int = 0
    """Episodes lost to simulators that crashed or hung."""
