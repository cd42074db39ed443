# SPDX-License-Identifier: Apache-2.0
"""GRPO for pass@k: a group is worth its best response, which alone is reinforced."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import best_of_group
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class GrpoPassk(PolicyGradient):
    """Group-relative policy optimisation of the best of k, k being the samples of a prompt."""

    class Config(PolicyGradientConfig):
        """Options of GRPO for pass@k."""

        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """What the best of a group adds to the second best; 0 for all others, and for all after a tie."""
        return best_of_group(self.scores(batch), batch.group_ids, eps=self.config.std_eps)
