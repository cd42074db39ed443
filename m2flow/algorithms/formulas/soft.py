# SPDX-License-Identifier: Apache-2.0
"""Losses of soft actor-critic (arXiv 1812.05905). ``C`` is the number of critics, ``B`` that of transitions."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor


@torch.no_grad()
def soft_targets(
    rewards: Float[Tensor, "B"],
    dones: Float[Tensor, "B"],
    *,
    next_values: Float[Tensor, "C B"],
    next_logprobs: Float[Tensor, "B"],
    alpha: Float[Tensor, ""],
    gamma: float,
) -> Float[Tensor, "B"]:
    """r + (1 - done) gamma (min of the target critics - alpha log pi), at an action drawn in the next state."""
    following = next_values.amin(0) - alpha * next_logprobs
    return rewards + (1 - dones) * gamma * following


def critic_loss(values: Float[Tensor, "C B"], targets: Float[Tensor, "B"], *, factor: float = 0.5) -> Float[Tensor, ""]:
    """``factor`` times the mean squared errors of the critics, summed. One half as in SB3; CleanRL has 1."""
    return factor * (values - targets.detach()).square().mean(1).sum()


def actor_loss(
    logprobs: Float[Tensor, "B"], values: Float[Tensor, "C B"], *, alpha: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Mean of alpha log pi - min Q, at actions drawn from the policy with gradient."""
    return (alpha.detach() * logprobs - values.amin(0)).mean()


def alpha_loss(
    log_alpha: Float[Tensor, ""],
    logprobs: Float[Tensor, "B"],
    *,
    target_entropy: float,
    through_exp: bool = False,
) -> Float[Tensor, ""]:
    """-mean(log alpha (log pi + target entropy)): alpha rises while the policy's entropy is below its target.

    Args:
        through_exp: alpha itself in place of its logarithm, as in CleanRL; SB3 has the logarithm.
    """
    scale = log_alpha.exp() if through_exp else log_alpha
    return -(scale * (logprobs.detach() + target_entropy)).mean()


@torch.no_grad()
def move_targets(targets: Iterable[Tensor], online: Iterable[Tensor], *, tau: float) -> None:
    """targets <- (1 - ``tau``) targets + ``tau`` online, in place."""
    for target, source in zip(targets, online, strict=True):
        target.mul_(1 - tau).add_(source, alpha=tau)
