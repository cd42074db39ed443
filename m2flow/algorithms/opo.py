# SPDX-License-Identifier: Apache-2.0
"""OPO: rewards less the baseline of least variance, the group's mean weighted by length."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Singleton, length_weighted
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class Opo(PolicyGradient):
    """On-policy optimisation with the optimal baseline."""

    class Config(PolicyGradientConfig):
        """Options of OPO, which is meant for one step an update; the clip acts in further ones alone."""

        singleton: Singleton = Field(default="zero")
        """What a group of one gets: 0, or its score."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores less the group's mean score per token."""
        options, lengths = self.config, batch.mask.sum(1)
        return length_weighted(self.scores(batch), batch.group_ids, lengths=lengths, singleton=options.singleton)
