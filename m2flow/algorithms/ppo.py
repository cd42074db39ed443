# SPDX-License-Identifier: Apache-2.0
"""PPO with a critic: generalised advantage estimation over tokens."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from m2flow.algorithms.base import Batch, Loss, Outputs, Totals
from m2flow.algorithms.formulas.advantage import Whitening, whiten
from m2flow.algorithms.formulas.aggregate import aggregate
from m2flow.algorithms.formulas.gae import Gaps, gae
from m2flow.algorithms.formulas.masked import on_last, required, zeroed
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig, means
from m2flow.algorithms.formulas.value import value_loss


class Ppo(PolicyGradient):
    """Proximal policy optimisation."""

    class Config(PolicyGradientConfig):
        """Options of PPO."""

        gamma: float = Field(default=1.0, ge=0, le=1)
        """Discount of a token."""
        lam: float = Field(default=0.95, ge=0, le=1)
        """Decay of generalised advantage estimation."""
        whiten: bool = Field(default=True)
        """Whether advantages get mean 0 and variance 1 over the batch."""
        whitening: Whitening = Field(default="exact")
        """Which convention that follows."""
        observation_gaps: Gaps = Field(default="skip")
        """What masked tokens between counted ones are: skipped, or steps that discount."""
        value_clip: float | None = Field(default=0.2, gt=0)
        """How far a value may move from the old one before its error is clipped. None: no clipping."""
        value_coef: float = Field(default=1.0, ge=0)
        """Weight of the critic's loss, which has the factor one half already."""
        target_kl: float | None = Field(default=None, gt=0)
        """An update ends early once the approximate divergence from the old policy exceeds this. None: never."""

        def problems(self) -> list[str]:
            """A convention of whitening where there is none."""
            ignored = not self.whiten and self.whitening != "exact"
            found = f"whitening is {self.whitening}, which whiten=False ignores: leave one of them out"
            return super().problems() + [found] * ignored

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = self.needs | {"values"}

    def advantages(self, batch: Batch) -> Batch:
        """Advantages and returns of each position."""
        options = self.config
        last = batch.rewards if batch.bootstraps is None else batch.rewards + options.gamma * batch.bootstraps
        rewards = on_last(last, batch.mask) + self.token_rewards(batch)
        found, returns = gae(
            rewards,
            required(batch.values),
            mask=batch.mask,
            gamma=options.gamma,
            lam=options.lam,
            gaps=options.observation_gaps,
        )
        if options.whiten:
            found = whiten(found, batch.mask, how=options.whitening)
        return self.corrected(replace(batch, advantages=found, returns=returns))

    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """The clipped surrogate and the critic's loss."""
        values, old, returns = (zeroed(required(x), batch.mask) for x in (outputs.values, batch.values, batch.returns))
        errors = value_loss(values, old, returns=returns, clip=self.config.value_clip)
        value = aggregate(errors.losses, batch.mask, totals=totals, mode=self.config.aggregation)
        clipped = {"clip_fraction": errors.clipped.to(values)}
        policy = super().loss(batch, outputs, totals=totals)
        sums = policy.sums | means(clipped, batch, totals=totals, group="critic")
        return Loss(policy=policy.policy, value=self.config.value_coef * value, sums=sums)

    def stop_early(self, sums: dict[str, float]) -> bool:
        """Whether the approximate divergence exceeds the target."""
        target = self.config.target_kl
        return target is not None and sums.get("policy/approx_kl", 0.0) > target
