# SPDX-License-Identifier: Apache-2.0
"""Policy losses of positions, and which of them were clipped. Inputs hold zeros where masked."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import row_means, spread


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
    dual: Bool[Tensor, "S T"] | None = None
    """Where dual clip bounds the loss, if there is one."""


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
    if clip.dual is None:
        return Surrogate(losses=losses, clipped=bounded > plain)
    most = -advantages * clip.dual
    dual = (advantages < 0) & (losses > most)
    return Surrogate(losses=torch.where(dual, most, losses), clipped=bounded > plain, dual=dual)


def cispo(
    logprobs: Float[Tensor, "S T"], ratios: Float[Tensor, "S T"], *, advantages: Float[Tensor, "S T"], clip: Clip
) -> Surrogate:
    """-clip(r) A logprob, the clipped ratio without gradient."""
    bounded = ratios.clamp(1 - clip.low, 1 + clip.high).detach()
    return Surrogate(losses=-bounded * advantages * logprobs, clipped=bounded != ratios.detach())


def log_linear(logprobs: Float[Tensor, "S T"], advantages: Float[Tensor, "S T"]) -> Surrogate:
    """-A logprob, without any ratio (REINFORCE, GPG)."""
    losses = -advantages * logprobs
    return Surrogate(losses=losses, clipped=torch.zeros_like(losses, dtype=torch.bool))


def soft_gate(
    ratios: Float[Tensor, "S T"], advantages: Float[Tensor, "S T"], *, positive: float, negative: float
) -> Surrogate:
    """SAPO: -A sigmoid(tau (r - 1)) 4 / tau, whose slope at r = 1 is -A; tau as the advantage's sign says."""
    tau = torch.where(advantages > 0, positive, negative).to(ratios)
    losses = -advantages * torch.sigmoid(tau * (ratios - 1)) * 4 / tau
    return Surrogate(losses=losses, clipped=torch.zeros_like(losses, dtype=torch.bool))


def geometric(
    gap: Float[Tensor, "S T"], advantages: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"], clip: Clip
) -> Surrogate:
    """GMPO: -(mean A) exp(mean of the bounded log-ratios) of each row, on all its positions.

    A log-ratio ``gap`` is bounded to [-low, high] where that makes the objective smaller: above if the advantage is
    positive, below if it is negative.
    """
    within, sign = gap.clamp(-clip.low, clip.high), advantages.sign()
    bounded = sign * torch.minimum(sign * gap, sign * within)
    losses = -row_means(advantages, mask) * row_means(bounded, mask).exp()
    return Surrogate(losses=spread(losses, mask), clipped=gap != within)
