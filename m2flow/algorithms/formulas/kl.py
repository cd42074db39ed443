# SPDX-License-Identifier: Apache-2.0
"""Estimators of the divergence from the reference, one number per position."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
"""k1: x; k2: x^2/2; k3: exp(-x)-1+x; with ``+``: the value of that one and the gradient of k2."""

Clamp = Literal["k3", "all", "none"]
"""Which estimates are kept within 10: k3 alone, its exponent within 20 too (verl); all (OpenRLHF); none (TRL)."""


def _k3(x: Tensor, clamp: Clamp) -> Tensor:
    if clamp == "none":
        return (-x).exp() - 1 + x
    x = x.clamp(-20, 20)
    return ((-x).exp() - 1 + x).clamp(-10, 10)


def kl(
    logprobs: Float[Tensor, "S T"], reference: Float[Tensor, "S T"], *, estimator: Estimator, clamp: Clamp = "k3"
) -> Float[Tensor, "S T"]:
    """The estimate at each position, with x = ``logprobs`` - ``reference`` (Schulman 2020, joschu.net/blog/kl-approx).

    In a loss the gradient of k2 is that of the divergence in expectation, and so are those of ``k1+`` and ``k3+``; that
    of k1 is 0 in expectation, and that of k3 belongs to the reversed divergence. In a reward there is no gradient.
    """
    x = logprobs - reference
    squared = 0.5 * x.square()
    value = {"k1": x, "k2": squared, "k3": _k3(x, clamp), "abs": x.abs()}[estimator.removesuffix("+")]
    if clamp == "all":
        value = value.clamp(-10, 10)
    return value.detach() + squared - squared.detach() if estimator.endswith("+") else value


def full_kl(
    logits: Float[Tensor, "*shape vocabulary"], reference: Float[Tensor, "*shape vocabulary"]
) -> Float[Tensor, "*shape"]:
    """The divergence itself, over the whole vocabulary: sum of p (log p - log q), nats."""
    own, other = torch.log_softmax(logits, dim=-1), torch.log_softmax(reference, dim=-1)
    return (own.exp() * (own - other)).sum(-1)
