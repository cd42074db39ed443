# SPDX-License-Identifier: Apache-2.0
"""Drawing the next token: the same uniform number gives the same token, whatever else is in the batch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from m2flow.engines.base import SamplingConfig

BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed first, so that only one block is looked into."""
MAX_ELEMENTS = 2**22
"""Logits that are worked on at a time."""
FIRST_CANDIDATES = 128
"""Most likely tokens among which top-p is looked for at first."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One token for each row."""

    tokens: Int[Tensor, "rows"]
    logprobs: Float[Tensor, "rows"]
    """Under the model's own softmax."""
    sampled_logprobs: Float[Tensor, "rows"]
    """Under the distribution that was drawn from."""
    entropies: Float[Tensor, "rows"]
    """Of the model's own softmax, nats."""


def uniforms(*, seed: int, iteration: int, prompt_id: str, index: int, number: int) -> Float[np.ndarray, "number"]:
    """The random numbers of one sample, in [0, 1): they depend on the first four and nothing else."""
    digest = hashlib.blake2b(f"{seed}/{iteration}/{index}/{prompt_id}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(number)


def draw(
    logits: Float[Tensor, "rows vocabulary"], uniform: Float[Tensor, "rows"], *, sampling: SamplingConfig
) -> Drawn:
    """Draw by inverting the cumulative distribution in the vocabulary's order; at temperature 0 the most likely token.

    Args:
        uniform: float64 in [0, 1), one for each row.
    """
    rows = max(1, MAX_ELEMENTS // logits.shape[1])
    parts = [_draw(*part, sampling=sampling) for part in zip(logits.split(rows), uniform.split(rows), strict=True)]
    return _joined(parts)


def _joined(parts: Sequence[Drawn]) -> Drawn:
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Drawn)]
    return Drawn(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _draw(logits: Tensor, uniform: Tensor, *, sampling: SamplingConfig) -> Drawn:
    logits = logits.float()
    shifted = logits - logits.amax(-1, keepdim=True)
    weights = shifted.exp()
    sums = _block_sums(weights)
    total = sums[:, -1]
    entropies = total.log() - (weights * shifted).sum(-1) / total
    if sampling.temperature == 0:
        tokens = shifted.argmax(-1)
        sampled = torch.zeros_like(total)
    else:
        tokens, sampled = _invert(shifted, (weights, sums), uniform=uniform, sampling=sampling)
    logprobs = _pick(shifted, tokens) - total.log()
    return Drawn(
        tokens=tokens, logprobs=logprobs.float(), sampled_logprobs=sampled.float(), entropies=entropies.float()
    )


def _pick(table: Tensor, columns: Tensor) -> Float[Tensor, "rows"]:
    return table.gather(1, columns[:, None])[:, 0].double()


def _block_sums(weights: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows blocks"]:
    """Cumulative sums at the ends of the blocks; float64, because float32 would lose unlikely tokens."""
    return _blocks(weights).sum(-1).double().cumsum(-1)


def _blocks(weights: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows blocks BLOCK"]:
    missing = -weights.shape[1] % BLOCK
    return (functional.pad(weights, (0, missing)) if missing else weights).unflatten(1, (-1, BLOCK))


def _invert(
    shifted: Tensor, plain: tuple[Tensor, Tensor], *, uniform: Tensor, sampling: SamplingConfig
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"]]:
    """The drawn tokens and their log-probs; ``plain`` are weights and their sums at temperature 1."""
    weights, sums = plain
    if sampling.temperature != 1:
        weights = (shifted / sampling.temperature).exp_()
        sums = _block_sums(weights)
    if sampling.top_k or sampling.top_p < 1:
        weights = weights * kept(shifted, sampling, total=sums[:, -1])
        sums = _block_sums(weights)
    goal = uniform * sums[:, -1]
    block = _first_above(sums, goal)
    before = _pick(functional.pad(sums, (1, 0)), block)
    inside = _blocks(weights)[torch.arange(len(block), device=block.device), block].double().cumsum(-1)
    tokens = block * BLOCK + _first_above(inside, goal - before)
    return tokens, _pick(shifted, tokens) / sampling.temperature - sums[:, -1].log()


def _first_above(cumulative: Float[Tensor, "rows n"], goal: Float[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """The first place where the sum exceeds ``goal``, else the last one that added to it: never one of weight 0."""
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.minimum((cumulative <= goal[:, None]).sum(-1), last)


def kept(
    shifted: Float[Tensor, "rows vocabulary"], sampling: SamplingConfig, *, total: Float[Tensor, "rows"]
) -> Bool[Tensor, "rows vocabulary"]:
    """Which tokens top-k and, among those, top-p leave; of equally likely ones those with the lower number.

    Args:
        shifted: logits, the largest of each row taken off.
        total: sum of ``exp(shifted / temperature)``.
    """
    values, sizes = _candidates(shifted, sampling, total=total)
    lowest = values.gather(1, sizes[:, None] - 1)
    above, equal = shifted > lowest, shifted == lowest
    room = sizes[:, None] - above.sum(-1, keepdim=True)
    if bool((equal.sum(-1, keepdim=True) > room).any()):
        equal &= equal.cumsum(-1) <= room
    return above | equal


def _candidates(
    shifted: Tensor, sampling: SamplingConfig, *, total: Tensor
) -> tuple[Float[Tensor, "rows candidates"], Int[Tensor, "rows"]]:
    """Most likely logits in descending order, and how many of them are kept."""
    vocabulary = shifted.shape[1]
    limit = min(sampling.top_k, vocabulary) if sampling.top_k else vocabulary
    number = limit if sampling.top_k else min(FIRST_CANDIDATES, vocabulary)
    while True:
        values = shifted.topk(number, dim=-1).values
        mass = (values.double() / sampling.temperature).exp().cumsum(-1)
        goal = sampling.top_p * (mass[:, -1] if sampling.top_k else total)
        if number == limit or sampling.top_p == 1 or bool((mass[:, -1] >= goal).all()):
            break
        number = min(limit, 8 * number)
    sizes = (mass < goal[:, None]).sum(-1) + 1 if sampling.top_p < 1 else torch.full_like(goal, limit, dtype=torch.long)
    return values, sizes.clamp(max=number)
