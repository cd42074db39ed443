# SPDX-License-Identifier: Apache-2.0
"""REINFORCE++: returns whitened over the whole batch, with or without a group baseline."""

from dataclasses import replace

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Whitening, group_relative, return_to_go, whiten
from m2flow.algorithms.formulas.masked import on_last
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class ReinforcePp(PolicyGradient):
    """REINFORCE++."""

    class Config(PolicyGradientConfig):
        """Options of REINFORCE++."""

        gamma: float = Field(default=1.0, ge=0, le=1)
        """Discount of a token; 1 with the baseline, whose scores have no time."""
        baseline: bool = Field(default=False)
        """Whether scores are centred within groups first; a group of one keeps its score."""
        whitening: Whitening = Field(default="exact")
        """Which convention the whitening of advantages follows."""

        def problems(self) -> list[str]:
            """A discount that the baseline would ignore."""
            ignored = self.baseline and self.gamma != 1
            found = f"gamma is {self.gamma}, which baseline ignores: leave one of them out"
            return super().problems() + [found] * ignored

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred within groups: what the baseline is."""
        return group_relative(self.scores(batch), batch.group_ids, eps=None, singleton="score")

    def advantages(self, batch: Batch) -> Batch:
        """Whitened returns of each position."""
        if self.config.baseline:
            found = self.spread_advantages(batch)
        else:
            rewards = on_last(batch.rewards, batch.mask) + self.token_rewards(batch)
            found = return_to_go(rewards, batch.mask, gamma=self.config.gamma)
        return self.corrected(replace(batch, advantages=whiten(found, batch.mask, how=self.config.whitening)))
