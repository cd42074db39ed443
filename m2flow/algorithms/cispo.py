# SPDX-License-Identifier: Apache-2.0
"""CISPO: the ratio is clipped as a weight, so that every token keeps its gradient."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig
from m2flow.algorithms.formulas.surrogate import Surrogate, cispo, ratio


class Cispo(PolicyGradient):
    """Clipped importance-sampling policy optimisation; the upper bound is 1 plus the option."""

    class Config(PolicyGradientConfig):
        """Options of CISPO."""

        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred and scaled within groups."""
        return group_relative(self.scores(batch), batch.group_ids, eps=self.config.std_eps)

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """The clipped ratio as a weight of the log-prob."""
        return cispo(
            logprobs, ratio(logprobs, old), advantages=zeroed(required(batch.advantages), batch.mask), clip=self.clip
        )
