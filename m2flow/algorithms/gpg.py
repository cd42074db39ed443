# SPDX-License-Identifier: Apache-2.0
"""GPG: the plain policy gradient with group-centred rewards, and neither ratio nor reference."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Singleton, group_relative
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import ObjectiveConfig, PolicyGradient
from m2flow.algorithms.formulas.surrogate import Surrogate, log_linear


class Gpg(PolicyGradient):
    """Group policy gradient."""

    class Config(ObjectiveConfig):
        """Options of GPG."""

        f_norm: float = Field(default=1.0, gt=0)
        """Advantages are divided by this number."""
        std_eps: float | None = Field(default=None, ge=0)
        """With it they are divided by the group's deviation plus this, too. None: no such division."""
        singleton: Singleton = Field(default="zero")
        """What a group of one gets: 0, or its score."""

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores, centred within groups, times samples over samples whose score is not 0."""
        options, scores = self.config, self.scores(batch)
        alpha = len(scores) / scores.count_nonzero().clamp(min=1)
        centred = group_relative(scores, batch.group_ids, eps=options.std_eps, singleton=options.singleton)
        return alpha.to(scores) * centred / options.f_norm

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """The advantage times the log-prob."""
        return log_linear(logprobs, zeroed(required(batch.advantages), batch.mask))
