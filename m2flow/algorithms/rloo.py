# SPDX-License-Identifier: Apache-2.0
"""RLOO: a sample's reward less the mean of the others of its prompt."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Singleton, rloo
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class Rloo(PolicyGradient):
    """REINFORCE leave-one-out, with the clipped surrogate."""

    class Config(PolicyGradientConfig):
        """Options of RLOO."""

        singleton: Singleton = Field(default="zero")
        """What a group of one gets: 0, or its score."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores less the mean of the group's others."""
        return rloo(self.scores(batch), batch.group_ids, singleton=self.config.singleton)
