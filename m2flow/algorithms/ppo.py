# SPDX-License-Identifier: Apache-2.0
"""PPO with a critic: generalised advantage estimation over tokens."""

from dataclasses import replace
from typing import Any

from pydantic import Field

from m2flow.algorithms.base import Batch, Loss, Outputs, Totals
from m2flow.algorithms.formulas.advantage import whiten
from m2flow.algorithms.formulas.aggregate import aggregate
from m2flow.algorithms.formulas.gae import gae
from m2flow.algorithms.formulas.masked import on_last, required, zeroed
from m2flow.algorithms.formulas.policy_gradient import PolicyGradient, PolicyGradientConfig
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
        value_clip: float | None = Field(default=0.2, gt=0)
        """How far a value may move from the old one before its error is clipped. None: no clipping."""
        value_coef: float = Field(default=1.0, ge=0)
        """Weight of the critic's loss, which has the factor one half already."""
        target_kl: float | None = Field(default=None, gt=0)
        """An update ends early once the approximate divergence from the old policy exceeds this. None: never."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = self.needs | {"values"}

    def advantages(self, batch: Batch) -> Batch:
        """Advantages and returns of each position."""
        rewards = on_last(batch.rewards, batch.mask)
        if batch.token_rewards is not None:
            rewards = rewards + zeroed(batch.token_rewards, batch.mask)
        options = self.config
        found, returns = gae(rewards, required(batch.values), mask=batch.mask, gamma=options.gamma, lam=options.lam)
        found = whiten(found, batch.mask) if options.whiten else found
        return self.weighted(replace(batch, advantages=found, returns=returns))

    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """The clipped surrogate and the critic's loss."""
        values, old, returns = (zeroed(required(x), batch.mask) for x in (outputs.values, batch.values, batch.returns))
        errors = value_loss(values, old, returns=returns, clip=self.config.value_clip)
        value = aggregate(errors, batch.mask, totals=totals, mode=self.config.aggregation)
        return replace(super().loss(batch, outputs, totals=totals), value=self.config.value_coef * value)

    def stop_early(self, sums: dict[str, float]) -> bool:
        """Whether the approximate divergence exceeds the target."""
        target = self.config.target_kl
        return target is not None and sums.get("policy/approx_kl", 0.0) > target
