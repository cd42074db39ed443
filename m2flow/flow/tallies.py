# SPDX-License-Identifier: Apache-2.0
"""Episodes in numbers: what is logged of those that were learned from, and of those that were evaluated."""

import math
from collections.abc import Sequence

import numpy as np

from m2flow.data.trajectories import Episode


def of_episodes(episodes: Sequence[Episode]) -> dict[str, float]:
    """``episode/num``, and means over ``episodes`` where there are some; success where the task defines it."""
    found = {"episode/num": float(len(episodes))}
    if not episodes:
        return found
    found["episode/return_mean"] = float(np.mean([episode.total_reward for episode in episodes]))
    found["episode/length_mean"] = float(np.mean([episode.num_ticks for episode in episodes]))
    found["episode/truncated_fraction"] = float(np.mean([episode.truncated for episode in episodes]))
    for name in ("success_once", "success_at_end"):
        known = [value for episode in episodes if (value := getattr(episode, name)) is not None]
        if known:
            found[f"episode/{name}"] = float(np.mean(known))
    return found


def of_evaluation(episodes: Sequence[Episode]) -> dict[str, float]:
    """``of_episodes``, and the 95 % confidence interval of ``success_at_end`` as ``success_low``, ``success_high``."""
    found = of_episodes(episodes)
    known = [episode.success_at_end for episode in episodes if episode.success_at_end is not None]
    if known:
        found["episode/success_low"], found["episode/success_high"] = wilson(sum(known), len(known))
    return found


def wilson(successes: int, trials: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); ``z`` is the normal quantile, here of 95 %."""
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
