# SPDX-License-Identifier: Apache-2.0
"""Generalised advantage estimation over the counted positions of a response."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import zeroed

Gaps = Literal["skip", "step"]
"""Masked positions between counted ones, such as a tool's tokens: skipped without discount (verl), or steps of value
and reward 0, which discount (OpenRLHF)."""


def gae(
    rewards: Float[Tensor, "S T"],
    values: Float[Tensor, "S T"],
    *,
    mask: Bool[Tensor, "S T"],
    gamma: float,
    lam: float,
    gaps: Gaps = "skip",
) -> tuple[Float[Tensor, "S T"], Float[Tensor, "S T"]]:
    """Advantages and returns (arXiv 1506.02438), zero where masked; nothing follows the last counted position."""
    rewards, values = zeroed(rewards, mask), zeroed(values, mask)
    advantages, running, following = (
        torch.zeros_like(values),
        values.new_zeros(len(values)),
        values.new_zeros(len(values)),
    )
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + gamma * following - values[:, t]
        passed = mask[:, t] | (gaps == "step")
        running = torch.where(passed, error + gamma * lam * running, running)
        following = torch.where(passed, values[:, t], following)
        advantages[:, t] = running
    advantages = zeroed(advantages, mask)
    return advantages, advantages + values
