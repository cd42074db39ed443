# SPDX-License-Identifier: Apache-2.0
"""The critic's loss."""

import torch
from jaxtyping import Float
from torch import Tensor

from m2flow.algorithms.formulas.surrogate import Surrogate


def value_loss(
    values: Float[Tensor, "S T"], old: Float[Tensor, "S T"], *, returns: Float[Tensor, "S T"], clip: float | None
) -> Surrogate:
    """Half the squared error; with ``clip`` the larger of it and that of the value kept within ``clip`` of the old.

    The factor one half is that of verl and OpenRLHF; SB3 and rsl_rl have none.
    """
    plain = (values - returns).square()
    if clip is None:
        return Surrogate(losses=0.5 * plain, clipped=torch.zeros_like(plain, dtype=torch.bool))
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    return Surrogate(losses=0.5 * torch.maximum(plain, bounded), clipped=bounded > plain)
