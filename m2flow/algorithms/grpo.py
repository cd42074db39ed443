# SPDX-License-Identifier: Apache-2.0
"""GRPO: a sample's reward relative to the others of its prompt."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Singleton, Spread, group_relative
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class Grpo(PolicyGradient):
    """Group-relative policy optimisation; losses are averaged over tokens, not over sequences first."""

    class Config(PolicyGradientConfig):
        """Options of GRPO."""

        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""
        singleton: Singleton = Field(default="zero")
        """What a group of one gets: 0, or its score."""

        std_over: Spread = Field(default="group")
        """Whose deviation that is: the group's, or the whole batch's (an option of TRL)."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred and scaled within groups."""
        options = self.config
        scores, groups = self.scores(batch), batch.group_ids
        return group_relative(scores, groups, eps=options.std_eps, singleton=options.singleton, over=options.std_over)
