# SPDX-License-Identifier: Apache-2.0
"""Dr. GRPO: GRPO without division by the deviation or by the response's length."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.aggregate import Aggregation
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class DrGrpo(PolicyGradient):
    """GRPO done right: a constant divisor in place of lengths."""

    class Config(PolicyGradientConfig):
        """Options of Dr. GRPO."""

        aggregation: Aggregation = Field(default="seq-mean-token-sum-norm")
        """How the losses of positions become one number."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred within groups."""
        return group_relative(self.scores(batch), batch.group_ids, eps=None)
