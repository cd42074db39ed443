# SPDX-License-Identifier: Apache-2.0
"""Policy losses of positions, and which of them were clipped. Inputs hold zeros where masked."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import row_means


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The ratio stays within [1 - low, 1 + high]; ``dual`` bounds the loss of negative advantages."""

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """Loss of each position, with gradient, and whether the clipped term decided it."""

    losses: Float[Tensor, "S T"]
    clipped: Bool[Tensor, "S T"]


def ratio(logprobs: Float[Tensor, "S T"], old: Float[Tensor, "S T"]) -> Float[Tensor, "S T"]:
    """exp(logprobs - old), the exponent within 20."""
    return (logprobs - old).clamp(-20, 20).exp()


def sequence_ratio(
    logprobs: Float[Tensor, "S T"], old: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"]
) -> Float[Tensor, "S T"]:
    """GSPO: the value is the row's geometric mean ratio, the gradient that of each position's own log-prob."""
    mean = row_means(logprobs - old, mask).detach()
    return (mean[:, None] + logprobs - logprobs.detach()).clamp(max=10).exp()


def clipped(ratios: Float[Tensor, "S T"], advantages: Float[Tensor, "S T"], *, clip: Clip) -> Surrogate:
    """max(-A r, -A clip(r)), and at most -A dual where A is negative."""
    plain, bounded = -advantages * ratios, -advantages * ratios.clamp(1 - clip.low, 1 + clip.high)
    losses = torch.maximum(plain, bounded)
    if clip.dual is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -advantages * clip.dual), losses)
    return Surrogate(losses=losses, clipped=bounded > plain)


def cispo(
    logprobs: Float[Tensor, "S T"], ratios: Float[Tensor, "S T"], *, advantages: Float[Tensor, "S T"], clip: Clip
) -> Surrogate:
    """-clip(r) A logprob, the clipped ratio without gradient."""
    bounded = ratios.clamp(1 - clip.low, 1 + clip.high).detach()
    return Surrogate(losses=-bounded * advantages * logprobs, clipped=bounded != ratios.detach())
