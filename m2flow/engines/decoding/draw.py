# SPDX-License-Identifier: Apache-2.0
"""Drawing the next token: the same uniform number gives the same token, whatever else is in the batch."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from m2flow.engines.base import SamplingConfig


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
    """The random numbers of one sample, in [0, 1): they depend on these four things and nothing else."""
    digest = hashlib.blake2b(f"{seed}/{iteration}/{index}/{prompt_id}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))).random(number)


def draw(logits: Float[Tensor, "rows vocabulary"], uniform: Float[Tensor, "rows"], sampling: SamplingConfig) -> Drawn:
    """Draw by inverting the cumulative distribution in the vocabulary's order; at temperature 0 the most likely token.

    Args:
        uniform: float64 in [0, 1), one for each row.
    """
    model = torch.log_softmax(logits.float(), dim=-1)
    entropies = -(model.exp() * model.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
    if sampling.temperature == 0:
        tokens = model.argmax(-1)
        sampled = torch.zeros_like(entropies)
    else:
        drawn_from = filtered(model, sampling)
        cumulative = drawn_from.double().exp().cumsum(-1)
        tokens = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
        sampled = _pick(drawn_from, tokens)
    return Drawn(tokens=tokens, logprobs=_pick(model, tokens), sampled_logprobs=sampled, entropies=entropies)


def _pick(logprobs: Tensor, tokens: Tensor) -> Tensor:
    return logprobs.gather(-1, tokens[:, None])[:, 0]


def filtered(logprobs: Float[Tensor, "rows vocabulary"], sampling: SamplingConfig) -> Float[Tensor, "rows vocabulary"]:
    """Log-probs after temperature, top-k and top-p, in this order, each renormalised; -inf where excluded."""
    out = logprobs
    if sampling.temperature != 1:
        out = torch.log_softmax(out / sampling.temperature, dim=-1)
    if 0 < sampling.top_k < out.shape[-1]:
        kept = torch.full_like(out, -torch.inf)
        top = out.topk(sampling.top_k, dim=-1)
        out = torch.log_softmax(kept.scatter(-1, top.indices, top.values), dim=-1)
    if sampling.top_p < 1:
        ordered = out.sort(dim=-1, descending=True, stable=True)
        before = ordered.values.exp().cumsum(-1) - ordered.values.exp()
        values = ordered.values.masked_fill(before >= sampling.top_p, -torch.inf)
        out = torch.log_softmax(torch.empty_like(out).scatter(-1, ordered.indices, values), dim=-1)
    return out
