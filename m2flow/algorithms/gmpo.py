# SPDX-License-Identifier: Apache-2.0
"""GMPO: GRPO with the geometric mean of a response's ratios, each clipped in log space."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.aggregate import Aggregation
from m2flow.algorithms.formulas.masked import required, row_means, spread, zeroed
from m2flow.algorithms.formulas.policy_gradient import ObjectiveConfig, PolicyGradient
from m2flow.algorithms.formulas.surrogate import Clip, Surrogate, geometric


class Gmpo(PolicyGradient):
    """Geometric-mean policy optimisation."""

    class Config(ObjectiveConfig):
        """Options of GMPO."""

        clip_low: float = Field(default=0.4, ge=0)
        """A token's log-ratio is clipped below minus this."""
        clip_high: float = Field(default=0.4, ge=0)
        """A token's log-ratio is clipped above this."""
        aggregation: Aggregation = Field(default="seq-mean-token-mean")
        """How the losses of positions, which are equal within a response, become one number."""
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
        """The response's advantage times the geometric mean of its ratios."""
        clip = Clip(low=self.config.clip_low, high=self.config.clip_high)
        advantages = zeroed(required(batch.advantages), batch.mask)
        return geometric(logprobs - old, advantages, mask=batch.mask, clip=clip)

    def factors(self, weights: Float[Tensor, "S T"], batch: Batch) -> Float[Tensor, "S T"]:
        """The geometric mean of a response's importance weights."""
        return spread(row_means((weights + 1e-10).log(), batch.mask).exp(), batch.mask)
