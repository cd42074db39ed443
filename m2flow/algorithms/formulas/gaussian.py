# SPDX-License-Identifier: Apache-2.0
"""Diagonal Gaussian policies: log-probs, entropy and divergence, summed over the dimensions of an action (nats)."""

import math

from jaxtyping import Float
from torch import Tensor


def gaussian_logprobs(
    actions: Float[Tensor, "*batch D"], mean: Float[Tensor, "*batch D"], *, std: Float[Tensor, "*batch D"]
) -> Float[Tensor, "*batch"]:
    """log N(actions; mean, std^2)."""
    return -(((actions - mean) / std).square() / 2 + std.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_entropy(std: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
    """Of N(., std^2)."""
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def gaussian_kl(
    old: tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"]],
    new: tuple[Float[Tensor, "*batch D"], Float[Tensor, "*batch D"]],
) -> Float[Tensor, "*batch"]:
    """KL(old, new) of two (mean, std)."""
    (mean, std), (new_mean, new_std) = old, new
    ratio = (std.square() + (mean - new_mean).square()) / (2 * new_std.square())
    return ((new_std / std).log() + ratio - 0.5).sum(-1)
