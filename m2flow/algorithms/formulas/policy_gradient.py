# SPDX-License-Identifier: Apache-2.0
"""What the algorithms of this package share: a surrogate, a penalty on divergence, a bonus on entropy."""

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.algorithms.formulas.aggregate import Aggregation, aggregate
from m2flow.algorithms.formulas.correction import truncated_weights
from m2flow.algorithms.formulas.kl import Estimator, kl
from m2flow.algorithms.formulas.masked import required, spread, zeroed
from m2flow.algorithms.formulas.surrogate import Clip, Surrogate, clipped, ratio
from m2flow.config import Config


class PolicyGradientConfig(Config):
    """Options that all policy-gradient algorithms share."""

    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 minus this."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 plus this."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts where the advantage is negative. None: unbounded."""
    aggregation: Aggregation = Field(default="token-mean")
    """How the losses of positions become one number."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the reference in the loss. 0: no reference is computed."""
    kl_estimator: Estimator = Field(default="k3")
    """Estimator of that divergence."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus. 0: no entropy is computed."""
    importance_cap: float | None = Field(default=None, gt=0)
    """Upper bound of the weights that correct for the rollout engine (truncated importance sampling). None: off."""


class PolicyGradient(Algorithm):
    """One advantage per sample and a clipped surrogate; subclasses override the pieces."""

    Config = PolicyGradientConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        wanted = {
            "old_logprobs": True,
            "reference_logprobs": config.kl_coef > 0,
            "entropies": config.entropy_coef > 0,
        }
        self.needs = frozenset(k for k, v in wanted.items() if v)
        read = {"old_logprobs"} if config.importance_cap is not None else set()
        self.loss_only = self.needs - read

    @property
    def clip(self) -> Clip:
        """Bounds of the ratio."""
        return Clip(low=self.config.clip_low, high=self.config.clip_high, dual=self.config.dual_clip)

    def scores(self, batch: Batch) -> Float[Tensor, "S"]:
        """Total reward of each sample, dense rewards included."""
        if batch.token_rewards is None:
            return batch.rewards
        return batch.rewards + zeroed(batch.token_rewards, batch.mask).sum(1)

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """One advantage for each sample."""
        raise TypeError(f"{type(self).__name__} must define sample_advantages")

    def advantages(self, batch: Batch) -> Batch:
        """The samples' advantages on all their counted positions."""
        return self.weighted(replace(batch, advantages=spread(self.sample_advantages(batch), batch.mask)))

    def weighted(self, batch: Batch) -> Batch:
        """``batch`` with the weights of truncated importance sampling, where that is on."""
        cap = self.config.importance_cap
        if cap is None:
            return batch
        old, rollout = required(batch.old_logprobs), batch.rollout_logprobs
        return replace(batch, weights=truncated_weights(old, rollout, mask=batch.mask, upper=cap))

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """Policy loss of each position; log-probs hold zeros where masked."""
        return clipped(ratio(logprobs, old), zeroed(required(batch.advantages), batch.mask), clip=self.clip)

    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """Surrogate, divergence and entropy, aggregated alike."""
        logprobs, old = zeroed(outputs.logprobs, batch.mask), zeroed(required(batch.old_logprobs), batch.mask)
        found = self.surrogate(batch, logprobs, old=old)
        weights = 1.0 if batch.weights is None else zeroed(batch.weights, batch.mask)
        terms = {"clip_fraction": found.clipped.to(logprobs), "approx_kl": (old - logprobs).clamp(-20, 20)}
        losses = found.losses * weights
        if self.config.kl_coef > 0:
            reference = zeroed(required(batch.reference_logprobs), batch.mask)
            terms["reference_kl"] = kl(logprobs, reference, estimator=self.config.kl_estimator)
            losses = losses + self.config.kl_coef * terms["reference_kl"]
        if outputs.entropies is not None:
            terms["entropy"] = zeroed(outputs.entropies, batch.mask)
            losses = losses - self.config.entropy_coef * terms["entropy"]
        policy = aggregate(losses, batch.mask, totals=totals, mode=self.config.aggregation)
        return Loss(policy=policy, sums=_sums(terms, batch, totals=totals))


def _sums(terms: dict[str, Tensor], batch: Batch, *, totals: Totals) -> dict[str, float]:
    return {
        f"policy/{k}": float(aggregate(v.detach(), batch.mask, totals=totals, mode="token-mean"))
        for k, v in terms.items()
    }
