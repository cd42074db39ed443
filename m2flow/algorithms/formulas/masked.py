# SPDX-License-Identifier: Apache-2.0
"""Reductions over counted positions; what stands on the others, a NaN too, never reaches a result or a gradient."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.errors import LearnerError


def required(x: Float[Tensor, "*shape"] | None) -> Float[Tensor, "*shape"]:
    """``x``, which the algorithm declares among its ``needs``.

    Raises:
        LearnerError: the trainer did not compute it.
    """
    if x is None:
        raise LearnerError("a quantity that the algorithm needs was not computed: name it in the algorithm's `needs`")
    return x


def zeroed(x: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"]) -> Float[Tensor, "S T"]:
    """``x`` with zeros where masked."""
    return torch.where(mask, x, torch.zeros_like(x))


def row_means(x: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"]) -> Float[Tensor, "S"]:
    """Mean of each row's counted positions, 0 for a row without any."""
    return zeroed(x, mask).sum(1) / mask.sum(1).clamp(min=1)


def on_last(x: Float[Tensor, "S"], mask: Bool[Tensor, "S T"]) -> Float[Tensor, "S T"]:
    """Each row's number on its last counted position, zeros elsewhere."""
    left = mask.long().flip(1).cumsum(1).flip(1)
    return zeroed(x[:, None].expand(mask.shape), mask & (left == 1))


def spread(x: Float[Tensor, "S"], mask: Bool[Tensor, "S T"]) -> Float[Tensor, "S T"]:
    """Each row's number on all its counted positions."""
    return zeroed(x[:, None].expand(mask.shape), mask)
