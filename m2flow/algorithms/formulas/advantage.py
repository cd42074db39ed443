# SPDX-License-Identifier: Apache-2.0
"""Advantages without a critic."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from m2flow.algorithms.formulas.masked import zeroed

Singleton = Literal["zero", "score"]
"""What a group of one gets: 0 (TRL, OpenRLHF), or its score with a deviation of 1 (verl)."""

Whitening = Literal["exact", "verl", "openrlhf"]
"""Which convention whitening follows."""

Spread = Literal["group", "batch"]
"""Whose standard deviation advantages are divided by."""


def _centred(
    scores: Float[Tensor, "S"], group_ids: Int[Tensor, "S"]
) -> tuple[Float[Tensor, "S"], Int[Tensor, "S"], Int[Tensor, "S"]]:
    """Scores less their group's mean, each sample's group and its size; exactly 0 where a group's scores are equal."""
    _, group = torch.unique(group_ids, return_inverse=True)
    sizes = torch.bincount(group)
    lowest = scores.new_full((len(sizes),), torch.inf).scatter_reduce(0, group, scores, "amin")
    shifted = scores - lowest[group]
    means = scores.new_zeros(len(sizes)).index_add(0, group, shifted) / sizes
    return shifted - means[group], group, sizes[group]


def _divided(centred: Float[Tensor, "S"], deviation: Float[Tensor, "*S"]) -> Float[Tensor, "S"]:
    """``centred / deviation``; where scores are equal and both are 0, it is 0 without any ``eps``."""
    return torch.where(centred == 0, centred, centred / deviation)


def group_relative(
    scores: Float[Tensor, "S"],
    group_ids: Int[Tensor, "S"],
    *,
    eps: float | None = 1e-6,
    singleton: Singleton = "zero",
    over: Spread = "group",
) -> Float[Tensor, "S"]:
    """(score - group mean) / (unbiased deviation + ``eps``) (GRPO, arXiv 2402.03300); no division if ``eps`` is None.

    Args:
        over: the deviation is the group's, or that of all scores (TRL's ``scale_rewards="batch"``).
        singleton: with ``score`` a group of one is divided by 1 + ``eps`` in single precision, as verl does.
    """
    centred, group, sizes = _centred(scores, group_ids)
    centred = torch.where(sizes == 1, scores if singleton == "score" else torch.zeros_like(scores), centred)
    if eps is None:
        return centred
    squares = torch.zeros_like(scores).index_add(0, group, centred.square())
    deviation = (squares[group] / (sizes - 1).clamp(min=1)).sqrt()
    if over == "batch" and len(scores) > 1:
        deviation = scores.std()
    alone = (torch.ones((), dtype=torch.float32) + eps).to(scores)
    return _divided(centred, torch.where(sizes == 1, alone, deviation + eps))


def rloo(
    scores: Float[Tensor, "S"], group_ids: Int[Tensor, "S"], *, singleton: Singleton = "zero"
) -> Float[Tensor, "S"]:
    """Score less the mean of the group's other scores."""
    centred, _, sizes = _centred(scores, group_ids)
    alone = scores if singleton == "score" else torch.zeros_like(scores)
    return torch.where(sizes == 1, alone, centred * sizes / (sizes - 1).clamp(min=1))


def best_of_group(
    scores: Float[Tensor, "S"], group_ids: Int[Tensor, "S"], *, eps: float | None = 1e-6
) -> Float[Tensor, "S"]:
    """Best score less second best, over the group's unbiased deviation + ``eps``, for the best; 0 for the others.

    The gradient of pass@k for k = the group's size (arXiv 2503.19595). A tie at the top, and a group of one, give 0.
    """
    centred, group, sizes = _centred(scores, group_ids)
    none = scores.new_full((len(torch.bincount(group)),), -torch.inf)
    highest = none.scatter_reduce(0, group, scores, "amax")
    is_best = scores == highest[group]
    second = none.scatter_reduce(0, group, scores.masked_fill(is_best, -torch.inf), "amax")
    num_best = torch.bincount(group, weights=is_best.double())
    alone = is_best & (num_best[group] == 1) & (sizes > 1)
    gain = torch.where(alone, scores - second[group], torch.zeros_like(scores))
    if eps is None:
        return gain
    squares = torch.zeros_like(scores).index_add(0, group, centred.square())
    return _divided(gain, (squares[group] / (sizes - 1).clamp(min=1)).sqrt() + eps)


def length_weighted(
    scores: Float[Tensor, "S"], group_ids: Int[Tensor, "S"], *, lengths: Int[Tensor, "S"], singleton: Singleton = "zero"
) -> Float[Tensor, "S"]:
    """Score less the group's mean weighted by ``lengths`` (OPO, arXiv 2505.23585); groups without tokens give 0."""
    centred, group, sizes = _centred(scores, group_ids)
    weights = lengths.to(scores)
    blank = torch.zeros_like(scores)
    total = blank.index_add(0, group, weights)[group]
    found = centred - blank.index_add(0, group, weights * centred)[group] / total.clamp(min=1)
    alone = scores if singleton == "score" else blank
    return torch.where(sizes == 1, alone, torch.where(total > 0, found, blank))


def against_greedy(
    rewards: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"], *, baselines: Float[Tensor, "S"]
) -> tuple[Float[Tensor, "S T"], Float[Tensor, "S T"]]:
    """Advantages and returns of ReMax (arXiv 2310.10505): undiscounted returns less the greedy response's reward.

    Returns are defined everywhere, a masked position having that of what follows it; advantages are zero there.
    """
    returns = zeroed(rewards, mask).flip(1).cumsum(1).flip(1)
    return zeroed(returns - baselines[:, None], mask), returns


def whiten(
    x: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"], *, how: Whitening = "exact", eps: float = 1e-8
) -> Float[Tensor, "S T"]:
    """(x - mean) / sqrt(variance + ``eps``) over all counted positions.

    Args:
        how: ``exact`` has the unbiased variance. ``verl`` too, but adds 1e-8 to the counts that means are divided by,
            which moves the mean: equal numbers are no longer whitened to 0. ``openrlhf`` has the biased variance, and
            at least ``eps`` of it in place of the sum.
    """
    count = mask.sum().clamp(min=1).to(x.dtype)  # an integer plus a float would be single precision
    divisor = count + (1e-8 if how == "verl" else 0.0)
    centred = zeroed(zeroed(x, mask) - zeroed(x, mask).sum() / divisor, mask)
    biased = centred.square().sum() / divisor
    if how == "openrlhf":
        return centred * torch.rsqrt(biased.clamp(min=eps))
    return centred * torch.rsqrt(biased * count / (count - 1).clamp(min=1) + eps)


def return_to_go(
    rewards: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"], *, gamma: float = 1.0
) -> Float[Tensor, "S T"]:
    """Discounted sum of this and later rewards; masked positions are skipped without discount."""
    rewards, running = zeroed(rewards, mask), rewards.new_zeros(len(rewards))
    returns = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        returns[:, t] = running
    return zeroed(returns, mask)
