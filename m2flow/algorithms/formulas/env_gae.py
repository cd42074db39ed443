# SPDX-License-Identifier: Apache-2.0
"""Generalised advantage estimation over steps of environments that end, time out and start again.

``T`` is the number of steps and ``N`` that of environments. A step that ends an episode, either way, cuts the
recursion; a time-out is no property of the task, so the reward it hides is made up for by a value (arXiv 1712.00378).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Bootstrap = Literal["final", "current", "none"]
"""Whose value stands for what a time-out cut off: that of the final observation (SB3, the default here), that of the
state before it (rsl_rl, which has no final observation), or nobody's (CleanRL's PPO)."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What a rollout of ``N`` environments over ``T`` steps saw."""

    rewards: Float[Tensor, "T N"]
    values: Float[Tensor, "T N"]
    """Of the state that each step began in."""
    last_values: Float[Tensor, "N"]
    """Of the state after the last step; does not count where that step ended an episode."""
    terminated: Bool[Tensor, "T N"]
    truncated: Bool[Tensor, "T N"]
    final_values: Float[Tensor, "T N"] | None = None
    """Of the observation that a truncated step ended with; may be anything elsewhere."""


def bootstrapped(steps: Steps, *, gamma: float, bootstrap: Bootstrap = "final") -> Float[Tensor, "T N"]:
    """Rewards; at truncated steps plus ``gamma`` times the value that ``bootstrap`` names.

    A step that is both terminated and truncated counts as truncated, as in rsl_rl; SB3 has it as terminated: clear
    ``truncated`` there for that.

    Raises:
        ValueError: ``final`` without ``final_values``.
    """
    if bootstrap == "none":
        return steps.rewards
    added = steps.final_values if bootstrap == "final" else steps.values
    if added is None:
        raise ValueError("bootstrap='final' needs final_values: give them, or choose 'current' or 'none'")
    return steps.rewards + gamma * torch.where(steps.truncated, added, torch.zeros_like(added))


def env_gae(
    steps: Steps, *, gamma: float, lam: float, bootstrap: Bootstrap = "final"
) -> tuple[Float[Tensor, "T N"], Float[Tensor, "T N"]]:
    """Advantages and returns (arXiv 1506.02438)."""
    rewards = bootstrapped(steps, gamma=gamma, bootstrap=bootstrap)
    goes_on = ~(steps.terminated | steps.truncated)
    advantages, running, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0]), steps.last_values
    for t in reversed(range(len(rewards))):
        following = torch.where(goes_on[t], following, torch.zeros_like(following))
        carried = torch.where(goes_on[t], running, torch.zeros_like(running))
        running = rewards[t] + gamma * following - steps.values[t] + gamma * lam * carried
        advantages[t], following = running, steps.values[t]
    return advantages, advantages + steps.values


def standardized(advantages: Float[Tensor, "*shape"], *, eps: float = 1e-8) -> Float[Tensor, "*shape"]:
    """(x - mean) / (unbiased deviation + ``eps``), as rsl_rl and SB3 do."""
    return (advantages - advantages.mean()) / (advantages.std() + eps)
