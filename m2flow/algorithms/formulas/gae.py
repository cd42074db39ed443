# SPDX-License-Identifier: Apache-2.0
"""Generalised advantage estimation over the counted positions of a response."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import zeroed


def gae(
    rewards: Float[Tensor, "S T"],
    values: Float[Tensor, "S T"],
    *,
    mask: Bool[Tensor, "S T"],
    gamma: float,
    lam: float,
) -> tuple[Float[Tensor, "S T"], Float[Tensor, "S T"]]:
    """Advantages and returns; masked positions are skipped without discount, and nothing follows the last one."""
    rewards, values = zeroed(rewards, mask), zeroed(values, mask)
    advantages, running, following = (
        torch.zeros_like(values),
        values.new_zeros(len(values)),
        values.new_zeros(len(values)),
    )
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + gamma * following - values[:, t]
        running = torch.where(mask[:, t], error + gamma * lam * running, running)
        following = torch.where(mask[:, t], values[:, t], following)
        advantages[:, t] = running
    advantages = zeroed(advantages, mask)
    return advantages, advantages + values
