# SPDX-License-Identifier: Apache-2.0
"""The critic's loss."""

import torch
from jaxtyping import Float
from torch import Tensor


def value_loss(
    values: Float[Tensor, "S T"], old: Float[Tensor, "S T"], *, returns: Float[Tensor, "S T"], clip: float | None
) -> Float[Tensor, "S T"]:
    """Half the squared error; with ``clip`` the larger of it and that of the value kept within ``clip`` of the old."""
    plain = (values - returns).square()
    if clip is None:
        return 0.5 * plain
    bounded = old + (values - old).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (bounded - returns).square())
