# SPDX-License-Identifier: Apache-2.0
"""GSPO: GRPO whose ratio is that of the whole response."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.aggregate import Aggregation
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig
from m2flow.algorithms.formulas.surrogate import Surrogate, clipped, sequence_ratio


class Gspo(PolicyGradient):
    """Group sequence policy optimisation."""

    class Config(PolicyGradientConfig):
        """Options of GSPO."""

        clip_low: float = Field(default=3e-4, ge=0)
        """The ratio is clipped below 1 minus this."""
        clip_high: float = Field(default=4e-4, ge=0)
        """The ratio is clipped above 1 plus this."""
        aggregation: Aggregation = Field(default="seq-mean-token-mean")
        """How the losses of positions become one number."""
        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred and scaled within groups."""
        return group_relative(self.scores(batch), batch.group_ids, eps=self.config.std_eps)

    @property
    def per_sequence(self) -> bool:
        """The ratio is."""
        return True

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """The clipped surrogate with the response's ratio."""
        ratios = sequence_ratio(logprobs, old, mask=batch.mask)
        return clipped(ratios, zeroed(required(batch.advantages), batch.mask), clip=self.clip)
