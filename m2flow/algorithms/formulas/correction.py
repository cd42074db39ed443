# SPDX-License-Identifier: Apache-2.0
"""Weights for the difference between the engine that sampled and the learner."""

from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import zeroed


def truncated_weights(
    old: Float[Tensor, "S T"], rollout: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"], upper: float
) -> Float[Tensor, "S T"]:
    """min(exp(old - rollout), upper), without gradient; zero where masked."""
    ratios = (zeroed(old, mask) - zeroed(rollout, mask)).clamp(-20, 20).exp()
    return zeroed(ratios.clamp(max=upper), mask).detach()
