# SPDX-License-Identifier: Apache-2.0
"""DAPO: GRPO with a higher upper clip, dynamic sampling and a soft penalty on overlong responses."""

from dataclasses import replace

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Batch
from m2flow.algorithms.formulas.advantage import Singleton, group_relative
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig


class Dapo(PolicyGradient):
    """Decoupled clip and dynamic sampling policy optimisation."""

    class Config(PolicyGradientConfig):
        """Options of DAPO."""

        clip_high: float = Field(default=0.28, ge=0)
        """The ratio is clipped above 1 plus this."""
        std_eps: float | None = Field(default=1e-6, ge=0)
        """Added to the group's deviation, which advantages are divided by. None: no division."""
        singleton: Singleton = Field(default="zero")
        """What a group of one gets: 0, or its score."""
        resampling_rounds: int = Field(default=4, ge=0)
        """How often groups of equal rewards may be replaced by new ones."""
        keep_range: tuple[float, float] | None = Field(default=None)
        """With it a group is kept if its mean reward lies between these two (OpenRLHF). None: if its rewards differ."""
        overlong_filter: bool = Field(default=False)
        """Whether responses that were cut at a limit are left out of the loss."""
        overlong_length: int | None = Field(default=None, gt=0)
        """Length at which the overlong penalty is whole. None: no penalty."""
        overlong_buffer: int = Field(default=4096, gt=0)
        """The penalty grows over this many tokens before that length."""
        overlong_factor: float = Field(default=1.0, ge=0)
        """The whole penalty."""

        def problems(self) -> list[str]:
            """A range without anything between its ends."""
            wrong = self.keep_range is not None and self.keep_range[0] >= self.keep_range[1]
            return super().problems() + [f"keep_range is {self.keep_range}: put the lower number first"] * wrong

    def keep(self, rewards: Float[Tensor, "n"]) -> bool:
        """Whether the rewards differ; a group of one is kept. With ``keep_range``: whether their mean is within it."""
        if self.config.keep_range is not None:
            low, high = self.config.keep_range
            return bool(low < rewards.double().mean() < high)
        return len(rewards) <= 1 or bool((rewards != rewards[0]).any())

    @property
    def max_resampling_rounds(self) -> int:
        """As configured."""
        return self.config.resampling_rounds

    def overlong(self, batch: Batch) -> Float[Tensor, "S"]:
        """What is added to each sample's reward for its length: 0 or less."""
        options = self.config
        if options.overlong_length is None:
            return batch.rewards.new_zeros(len(batch.rewards))
        excess = batch.mask.sum(1).to(batch.rewards) - (options.overlong_length - options.overlong_buffer)
        return (-excess / options.overlong_buffer * options.overlong_factor).clamp(max=0)

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """Scores with their penalty, centred and scaled within groups."""
        scores = self.scores(batch) + self.overlong(batch)
        return group_relative(scores, batch.group_ids, eps=self.config.std_eps, singleton=self.config.singleton)

    def corrected(self, batch: Batch) -> Batch:
        """Without what was cut at a limit, if that is to be left out of the loss."""
        found = super().corrected(batch)
        if not self.config.overlong_filter:
            return found
        mask = found.mask & ~batch.truncated[:, None]
        return replace(found, mask=mask, advantages=zeroed(required(found.advantages), mask))
