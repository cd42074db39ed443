# SPDX-License-Identifier: Apache-2.0
"""Estimators of the divergence from the reference, one number per position."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
"""k1: x; k2: x^2/2; k3: exp(-x)-1+x; with ``+``: the value of that one and the gradient of k2."""


def _k3(x: Tensor) -> Tensor:
    clamped = x.clamp(-20, 20)
    return ((-clamped).exp() - 1 + clamped).clamp(-10, 10)


def kl(
    logprobs: Float[Tensor, "S T"], reference: Float[Tensor, "S T"], *, estimator: Estimator
) -> Float[Tensor, "S T"]:
    """The estimate at each position; k3 is clamped as in verl."""
    x = logprobs - reference
    squared = 0.5 * x.square()
    if estimator in ("k1+", "k3+"):
        value = x if estimator == "k1+" else _k3(x)
        return value.detach() + squared - squared.detach()
    return {"k1": x, "k2": squared, "k3": _k3(x), "abs": x.abs()}[estimator]


def full_kl(
    logits: Float[Tensor, "*shape vocabulary"], reference: Float[Tensor, "*shape vocabulary"]
) -> Float[Tensor, "*shape"]:
    """The divergence itself, over the whole vocabulary: sum of p (log p - log q), nats."""
    own, other = torch.log_softmax(logits, dim=-1), torch.log_softmax(reference, dim=-1)
    return (own.exp() * (own - other)).sum(-1)
