# SPDX-License-Identifier: Apache-2.0
"""SAPO: GRPO with a smooth gate on the ratio in place of the clip."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import group_relative
from m2flow.algorithms.formulas.aggregate import Aggregation
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import ObjectiveConfig, PolicyGradient
from m2flow.algorithms.formulas.surrogate import Surrogate, ratio, soft_gate


class Sapo(PolicyGradient):
    """Soft adaptive policy optimisation."""

    class Config(ObjectiveConfig):
        """Options of SAPO."""

        tau_positive: float = Field(default=1.0, gt=0)
        """How steeply the gate closes where the advantage is positive."""
        tau_negative: float = Field(default=1.05, gt=0)
        """How steeply it closes elsewhere; larger, for such tokens make training less stable."""
        aggregation: Aggregation = Field(default="seq-mean-token-mean")
        """How the losses of positions become one number."""
        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred and scaled within groups."""
        return group_relative(self.scores(batch), batch.group_ids, eps=self.config.std_eps)

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """The gate of the ratio, times the advantage."""
        advantages, options = zeroed(required(batch.advantages), batch.mask), self.config
        gates = {"positive": options.tau_positive, "negative": options.tau_negative}
        return soft_gate(ratio(logprobs, old), advantages, **gates)
