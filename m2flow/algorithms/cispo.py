# SPDX-License-Identifier: Apache-2.0
"""CISPO: the ratio is clipped as a weight, so that every token keeps its gradient."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import ObjectiveConfig, PolicyGradient
from m2flow.algorithms.formulas.surrogate import Clip, Surrogate, cispo, ratio


class Cispo(PolicyGradient):
    """Clipped importance-sampling policy optimisation; the upper bound is 1 plus the option."""

    class Config(ObjectiveConfig):
        """Options of CISPO."""

        clip_low: float = Field(default=0.2, ge=0)
        """The weight is clipped below 1 minus this. 1 or more: no lower bound."""
        clip_high: float = Field(default=0.2, ge=0)
        """The weight is clipped above 1 plus this (in TRL the option is the bound itself)."""
        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred and scaled within groups."""
        return group_relative(self.scores(batch), batch.group_ids, eps=self.config.std_eps)

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """The clipped ratio as a weight of the log-prob."""
        clip = Clip(low=self.config.clip_low, high=self.config.clip_high)
        advantages = zeroed(required(batch.advantages), batch.mask)
        return cispo(logprobs, ratio(logprobs, old), advantages=advantages, clip=clip)
