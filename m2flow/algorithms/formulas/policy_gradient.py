# SPDX-License-Identifier: Apache-2.0
"""What the algorithms of this package share: a surrogate, a penalty on divergence, a bonus on entropy."""

from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import AfterValidator, Field
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.algorithms.formulas.aggregate import Aggregation, aggregate
from m2flow.algorithms.formulas.correction import Level, Rule, Weighting, accepted, importance_weights
from m2flow.algorithms.formulas.kl import Clamp, Estimator, kl
from m2flow.algorithms.formulas.masked import required, spread, zeroed
from m2flow.algorithms.formulas.surrogate import Clip, Surrogate, clipped, ratio
from m2flow.config import Config


def _rule(text: str) -> str:
    Rule.parse(text)
    return text


class ObjectiveConfig(Config):
    """Options that all policy-gradient algorithms share, whatever their surrogate."""

    aggregation: Aggregation = Field(default="token-mean")
    """How the losses of positions become one number."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the reference in the loss. 0: none there."""
    kl_reward_coef: float = Field(default=0.0, ge=0)
    """Weight of the divergence from the reference that each token's reward is reduced by. 0: none there."""
    kl_estimator: Estimator = Field(default="k3")
    """Estimator of that divergence. In the reward k1 is the unbiased one."""
    kl_clamp: Clamp = Field(default="k3")
    """Which estimates are kept within 10."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus. 0: no entropy is computed."""
    importance_cap: float | None = Field(default=None, gt=0)
    """Upper bound of the weights that correct for the rollout engine (truncated importance sampling). None: off."""
    importance_floor: float | None = Field(default=None, gt=0)
    """With it weights outside of this and the cap are 0 (IcePop). None: only the cap."""
    importance_level: Level = Field(default="token")
    """Whether each token has a weight of its own, or a response one for all its tokens."""
    importance_normalize: bool = Field(default=False)
    """Whether these weights are divided by their mean over the batch."""
    reject: tuple[Annotated[str, AfterValidator(_rule)], ...] = Field(default=())
    """What is left out of the loss because learner and rollout differ too much there: `token_k3=0.3`,
    `seq_mean_k1=0.8_1.2` and so on. All rules must accept."""

    def problems(self) -> list[str]:
        """Options of importance weights that are off, and a floor above the cap."""
        cap, floor = self.importance_cap, self.importance_floor
        changed = floor is not None or self.importance_level != "token" or self.importance_normalize
        found = []
        if cap is None and changed:
            found.append("importance_floor, importance_level and importance_normalize want an importance_cap: set one")
        if cap is not None and floor is not None and floor > cap:
            found.append(f"importance_floor is {floor}, above importance_cap {cap}: lower it")
        return found


class PolicyGradientConfig(ObjectiveConfig):
    """Those, and options of the clipped surrogate."""

    clip_low: float = Field(default=0.2, ge=0)
    """The ratio is clipped below 1 minus this."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped above 1 plus this."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts where the advantage is negative. None: unbounded."""


class PolicyGradient(Algorithm):
    """One advantage per sample and a clipped surrogate; subclasses override the pieces."""

    Config = PolicyGradientConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rules = tuple(map(Rule.parse, config.reject))
        in_reward = config.kl_reward_coef > 0
        wanted = {
            "old_logprobs": True,
            "reference_logprobs": config.kl_coef > 0 or in_reward,
            "entropies": config.entropy_coef > 0,
        }
        self.needs = frozenset(k for k, v in wanted.items() if v)
        read = {
            "old_logprobs": config.importance_cap is not None or bool(self.rules) or in_reward,
            "reference_logprobs": in_reward,
        }
        self.loss_only = self.needs - {k for k, v in read.items() if v}

    @property
    def per_sequence(self) -> bool:
        """See ``Algorithm.per_sequence``: here the aggregation may be."""
        return self.config.aggregation.startswith("seq")

    @property
    def clip(self) -> Clip:
        """Bounds of the ratio."""
        return Clip(low=self.config.clip_low, high=self.config.clip_high, dual=self.config.dual_clip)

    def token_rewards(self, batch: Batch) -> Float[Tensor, "S T"]:
        """Dense rewards less the divergence from the reference (if it is in the reward), zero where masked."""
        dense = batch.rewards.new_zeros(batch.mask.shape)
        if batch.token_rewards is not None:
            dense = zeroed(batch.token_rewards, batch.mask)
        if self.config.kl_reward_coef == 0:
            return dense
        old, reference = (zeroed(required(x), batch.mask) for x in (batch.old_logprobs, batch.reference_logprobs))
        return dense - self.config.kl_reward_coef * self.divergence(old, reference).detach()

    def divergence(self, logprobs: Float[Tensor, "S T"], reference: Float[Tensor, "S T"]) -> Float[Tensor, "S T"]:
        """From the reference, as configured."""
        return kl(logprobs, reference, estimator=self.config.kl_estimator, clamp=self.config.kl_clamp)

    def scores(self, batch: Batch) -> Float[Tensor, "S"]:
        """Total reward of each sample, those of its tokens included."""
        return batch.rewards + self.token_rewards(batch).sum(1)

    def sample_advantages(self, batch: Batch) -> Float[Tensor, "S"]:
        """One advantage for each sample. All of them have a counted position; there may be no sample at all."""
        raise TypeError(f"{type(self).__name__} must define sample_advantages")

    def spread_advantages(self, batch: Batch) -> Float[Tensor, "S T"]:
        """Those of the samples on all their counted positions; samples without any are as if they were not there."""
        rows = batch.mask.any(1).nonzero()[:, 0]
        each = torch.zeros_like(batch.rewards).index_copy(0, rows, self.sample_advantages(batch.rows(rows)))
        return spread(each, batch.mask)

    def advantages(self, batch: Batch) -> Batch:
        """The samples' advantages on all their counted positions."""
        return self.corrected(replace(batch, advantages=self.spread_advantages(batch)))

    def corrected(self, batch: Batch) -> Batch:
        """``batch`` with importance weights, and without the positions that the rules reject, where these are on.

        Advantages are those of the whole batch: what is rejected is left out of the loss alone.
        """
        options, kept = self.config, batch.mask
        for rule in self.rules:
            kept = kept & accepted(required(batch.old_logprobs), batch.rollout_logprobs, mask=batch.mask, rule=rule)
        if options.importance_cap is not None:
            how = Weighting(
                upper=options.importance_cap,
                lower=options.importance_floor,
                level=options.importance_level,
                normalize=options.importance_normalize,
            )
            old = required(batch.old_logprobs)
            found = importance_weights(old, batch.rollout_logprobs, mask=batch.mask, how=how)
            batch = replace(batch, weights=zeroed(found.weights, kept))
        return replace(batch, mask=kept, advantages=zeroed(required(batch.advantages), kept))

    def surrogate(self, batch: Batch, logprobs: Float[Tensor, "S T"], *, old: Float[Tensor, "S T"]) -> Surrogate:
        """Policy loss of each position; log-probs hold zeros where masked."""
        return clipped(ratio(logprobs, old), zeroed(required(batch.advantages), batch.mask), clip=self.clip)

    def factors(self, weights: Float[Tensor, "S T"], batch: Batch) -> Float[Tensor, "S T"]:
        """What the importance weights multiply each position's loss by: themselves."""
        return zeroed(weights, batch.mask)

    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """Surrogate, divergence and entropy, aggregated alike."""
        logprobs, old = zeroed(outputs.logprobs, batch.mask), zeroed(required(batch.old_logprobs), batch.mask)
        found = self.surrogate(batch, logprobs, old=old)
        terms = {**_fractions(found, batch), "approx_kl": (old - logprobs).clamp(-20, 20)}
        losses = found.losses if batch.weights is None else found.losses * self.factors(batch.weights, batch)
        if "reference_logprobs" in self.needs:
            terms["reference_kl"] = self.divergence(logprobs, zeroed(required(batch.reference_logprobs), batch.mask))
        if self.config.kl_coef > 0:
            losses = losses + self.config.kl_coef * terms["reference_kl"]
        if "entropies" in self.needs:
            terms["entropy"] = zeroed(required(outputs.entropies), batch.mask)
            losses = losses - self.config.entropy_coef * terms["entropy"]
        policy = aggregate(losses, batch.mask, totals=totals, mode=self.config.aggregation)
        return Loss(policy=policy, sums=means(terms, batch, totals=totals, group="policy"))


def _fractions(found: Surrogate, batch: Batch) -> dict[str, Tensor]:
    """Of clipped positions: all, those of negative and of positive advantages, and those that dual clip bounds."""
    advantages = required(batch.advantages)
    flags = {
        "clip_fraction": found.clipped,
        "clip_fraction_low": found.clipped & (advantages < 0),
        "clip_fraction_high": found.clipped & (advantages > 0),
    }
    if found.dual is not None:
        flags["dual_clip_fraction"] = found.dual
    return {name: flag.to(advantages) for name, flag in flags.items()}


def means(terms: dict[str, Tensor], batch: Batch, *, totals: Totals, group: str) -> dict[str, float]:
    """This micro-batch's shares of the means over tokens, as ``group/name``."""
    return {
        f"{group}/{k}": float(aggregate(v.detach(), batch.mask, totals=totals, mode="token-mean"))
        for k, v in terms.items()
    }
