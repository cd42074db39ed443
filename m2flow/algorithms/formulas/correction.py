# SPDX-License-Identifier: Apache-2.0
"""Weights and rejection for the difference between the engine that sampled and the learner.

``x`` is the learner's log-prob less the rollout's, kept within 20 wherever it is an exponent. Nothing here has a
gradient, and statistics are those of the whole batch that is given.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.formulas.masked import row_means, spread, zeroed

Level = Literal["token", "sequence"]
"""Whether each token has a ratio of its own, or the tokens of a response share the product of theirs."""


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """How a ratio becomes a weight."""

    upper: float
    """Larger ratios become this (truncated importance sampling), or 0 if there is a ``lower``."""
    lower: float | None = None
    """With it weights outside of [``lower``, ``upper``] are 0 (IcePop, arXiv 2510.18855)."""
    level: Level = "token"
    normalize: bool = False
    """Whether weights are divided by their mean: over tokens, or over responses where those share a ratio."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights and what they were made of, all zero where masked."""

    weights: Float[Tensor, "S T"]
    ratios: Float[Tensor, "S T"]
    """Before bounds."""
    bounded: Float[Tensor, "S T"]
    """Before normalisation."""
    factor: Float[Tensor, ""]
    """What normalisation divides by."""


def _gap(
    old: Float[Tensor, "S T"], rollout: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"]
) -> Float[Tensor, "S T"]:
    return (zeroed(old, mask) - zeroed(rollout, mask)).detach()


def _exp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return x.clamp(-20, 20).exp()


def _mean(x: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"]) -> Float[Tensor, ""]:
    return zeroed(x, mask).sum() / mask.sum().clamp(min=1)


def importance_weights(
    old: Float[Tensor, "S T"], rollout: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"], how: Weighting
) -> Weights:
    """exp(x) of each token, or exp(sum of x) of each response on all its tokens; bounded, then normalised if asked."""
    x = _gap(old, rollout, mask=mask)
    ratios = zeroed(_exp(x), mask) if how.level == "token" else spread(_exp(x.sum(1)), mask)
    if how.lower is None:
        bounded = ratios.clamp(max=how.upper)
    else:
        bounded = torch.where((ratios >= how.lower) & (ratios <= how.upper), ratios, torch.zeros_like(ratios))
    factor = _mean(bounded, mask) if how.level == "token" else row_means(bounded, mask).sum() / mask.any(1).sum()
    weights = bounded / factor if how.normalize and factor > 0 else bounded
    return Weights(weights=weights, ratios=ratios, bounded=bounded, factor=factor)


def weight_metrics(found: Weights, mask: Bool[Tensor, "S T"], *, how: Weighting) -> dict[str, float]:
    """What the weights are like, before normalisation.

    ``mean`` over tokens; ``fraction_high`` and ``fraction_low``: ratios outside of the bounds (``lower`` is 1/``upper``
    where there is none), of tokens or of responses as the level says; ``zeroed``: tokens that IcePop leaves out;
    ``effective_sample_size``: (mean w)^2 / mean(w^2), as a part of 1.
    """
    lower = 1 / how.upper if how.lower is None else how.lower
    counted = mask if how.level == "token" else mask.any(1, keepdim=True)
    ratios = found.ratios if how.level == "token" else found.ratios.amax(1, keepdim=True)
    mean = _mean(found.bounded, mask)
    metrics = {
        "mean": mean,
        "fraction_high": _mean((ratios > how.upper).to(ratios), counted),
        "fraction_low": _mean((ratios < lower).to(ratios), counted),
        "zeroed": _mean((found.bounded == 0).to(ratios), mask),
        "effective_sample_size": mean.square() / _mean(found.bounded.square(), mask),
    }
    return {name: value.item() for name, value in metrics.items()}


Statistic = Literal[
    "token_k1", "token_k2", "token_k3",
    "seq_sum_k1", "seq_sum_k2", "seq_sum_k3",
    "seq_mean_k1", "seq_mean_k2", "seq_mean_k3",
    "seq_max_k2", "seq_max_k3",
]  # fmt: skip
"""What a rule looks at: k1 = -x, k2 = x^2/2, k3 = exp(x) - 1 - x, of a token or summed up over a response."""


STATISTICS: dict[str, Statistic] = {name: name for name in get_args(Statistic)}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Tokens or whole responses whose statistic is out of bounds are rejected."""

    statistic: Statistic
    upper: float
    lower: float | None = None
    """k1 alone has a lower bound, 1/``upper`` if none is given. Both bound rollout/learner, whose logarithm k1 is:
    the inverse of the importance weight."""

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """``statistic=upper``, or ``statistic=lower_upper`` for k1.

        Raises:
            ValueError: it is written otherwise.
        """
        name, _, bounds = text.partition("=")
        if name not in STATISTICS:
            raise ValueError(f"'{text}' names no statistic; one of {', '.join(STATISTICS)} comes first")
        numbers = [float(number) for number in bounds.split("_")]
        most = 2 if name.endswith("k1") else 1
        if len(numbers) > most or min(numbers) <= 0 or numbers != sorted(numbers):
            wanted = "upper or lower_upper" if most == 2 else "upper"
            raise ValueError(f"'{text}' should be '{name}=' and {wanted}, numbers above 0")
        return cls(statistic=STATISTICS[name], upper=numbers[-1], lower=numbers[0] if len(numbers) == 2 else None)

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the statistic itself."""
        if not self.statistic.endswith("k1"):
            return -math.inf, self.upper
        return math.log(1 / self.upper if self.lower is None else self.lower), math.log(self.upper)


def _divergence(x: Float[Tensor, "S T"], statistic: Statistic) -> Float[Tensor, "S T"]:
    x = x.clamp(-20, 20)
    return {"k1": -x, "k2": x.square() / 2, "k3": x.exp() - 1 - x}[statistic[-2:]]


def accepted(
    old: Float[Tensor, "S T"], rollout: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"], rule: Rule
) -> Bool[Tensor, "S T"]:
    """``mask`` without what the rule rejects. ``seq_mean_k1`` bounds the geometric mean of a response's ratios."""
    each = zeroed(_divergence(_gap(old, rollout, mask=mask), rule.statistic), mask)
    over = {"seq_sum": lambda: each.sum(1), "seq_mean": lambda: row_means(each, mask), "seq_max": lambda: each.amax(1)}
    level = rule.statistic.rpartition("_")[0]
    found = each if level == "token" else over[level]()[:, None]
    low, high = rule.bounds
    return mask & (found >= low) & (found <= high)


def off_policy_metrics(
    old: Float[Tensor, "S T"], rollout: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"]
) -> dict[str, float]:
    """How far the learner (``training``) is from the policy that sampled (``rollout``).

    Perplexities and their ratio are means over responses that have tokens; ``kl`` and ``k3_kl`` estimate KL(rollout,
    learner) as means over tokens; chi2 = E[ratio^2] - 1, of tokens and of whole responses.
    """
    old, rollout, mask = old[mask.any(1)], rollout[mask.any(1)], mask[mask.any(1)]
    x = _gap(old, rollout, mask=mask)
    own, other = -row_means(old, mask), -row_means(rollout, mask)
    gap = own - other
    metrics = {
        "training_ppl": own.exp().mean(),
        "training_log_ppl": own.mean(),
        "rollout_ppl": other.exp().mean(),
        "rollout_log_ppl": other.mean(),
        "kl": -_mean(x, mask),
        "k3_kl": _mean(_divergence(x, "token_k3"), mask),
        "log_ppl_diff": gap.mean(),
        "log_ppl_abs_diff": gap.abs().mean(),
        "log_ppl_diff_max": gap.max(),
        "log_ppl_diff_min": gap.min(),
        "ppl_ratio": gap.exp().mean(),
        "chi2_token": _mean(_exp(x).square(), mask) - 1,
        "chi2_seq": _exp(x.sum(1)).square().mean() - 1,
    }
    return {name: value.item() for name, value in metrics.items()}
