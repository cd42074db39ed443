# SPDX-License-Identifier: Apache-2.0
"""Log-probs and entropies of chosen tokens, without [tokens, vocabulary] ever whole in memory.

The vocabulary is walked in tiles. The forward pass keeps each token's logsumexp, the backward pass makes a tile's
logits again: one further product of the head (a third more of its operations) for a memory that does not grow with the
vocabulary.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

TILE_ELEMENTS = 2**22
"""Logits in memory at once: 16 MB in float32, about what a last-level cache holds."""


def chunked_logprobs(
    hidden: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocabulary width"],
    *,
    labels: Int[Tensor, "tokens"],
    temperature: float = 1.0,
    entropies: bool = False,
) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"] | None]:
    """log softmax(hidden @ weight.T / temperature)[labels], and the entropy of that distribution (nats) if asked.

    Both are differentiable in ``hidden`` and ``weight``, and at least float32 whatever the inputs are.
    With z the logits over temperature, p their softmax and H its entropy, the gradients are
    d log p[label] / dz = onehot - p and dH / dz = -p (log p + H).
    """
    logprobs, entropy = _TiledLogprobs.apply(hidden, weight, labels, 1.0 / temperature, entropies)
    return logprobs, entropy if entropies else None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _Tiles:
    """Walks the vocabulary; each tile's logits lie in the same buffer."""

    def __init__(self, hidden: Tensor, weight: Tensor, *, scale: float) -> None:
        self.hidden, self.weight, self.scale = hidden, weight, scale
        self.size = min(weight.shape[0], max(256, TILE_ELEMENTS // max(hidden.shape[0], 1)))
        self.buffer = hidden.new_empty(hidden.shape[0] * self.size)

    def __iter__(self) -> Any:
        """(first row of ``weight``, the tile's rows of it, logits [tokens, tile]); the logits may be overwritten."""
        for first in range(0, self.weight.shape[0], self.size):
            rows = self.weight[first : first + self.size]
            out = self.buffer[: self.hidden.shape[0] * len(rows)].view(-1, len(rows))
            logits = torch.mm(self.hidden, rows.T, out=out).to(_wide(out.dtype))
            yield first, rows, logits.mul_(self.scale) if self.scale != 1 else logits


class _Running:
    """Softmax sums over the tiles seen so far, relative to the largest logit among them."""

    def __init__(self, like: Tensor, entropies: bool) -> None:
        blank = like.new_zeros(like.shape[0], dtype=_wide(like.dtype))
        self.largest, self.picked = torch.full_like(blank, float("-inf")), blank.clone()
        self.sum = blank.clone()
        self.moment = blank.clone() if entropies else None
        """Sum of e^y y with y = logit - largest."""

    def add(self, first: int, logits: Float[Tensor, "tokens tile"], *, labels: Int[Tensor, "tokens"]) -> None:
        """Take a tile in; its logits are overwritten."""
        at = labels - first
        inside = (at >= 0) & (at < logits.shape[1])
        found = logits.gather(1, at.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        self.picked = torch.where(inside, found, self.picked)
        largest = torch.maximum(self.largest, logits.amax(1))
        drop = self.largest - largest
        y = logits.sub_(largest[:, None])
        if self.moment is not None:
            # Before the first tile drop is -inf and both sums are 0.
            shifted = self.moment + torch.where(self.sum > 0, drop * self.sum, 0.0)
            e = y.exp()
            self.moment = shifted * drop.exp() + y.mul_(e).sum(1)
        else:
            e = y.exp_()
        self.sum = self.sum * drop.exp() + e.sum(1)
        self.largest = largest


class _TiledLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        hidden, weight, labels, scale, entropies = inputs
        running = _Running(hidden, entropies)
        for first, _, logits in _Tiles(hidden, weight, scale=scale):
            running.add(first, logits, labels=labels)
        logsumexp = running.largest + running.sum.log()
        entropy = (
            running.sum.new_zeros(()) if running.moment is None else running.sum.log() - running.moment / running.sum
        )
        ctx.save_for_backward(hidden, weight, labels, logsumexp, entropy)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return running.picked - logsumexp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, labels, logsumexp, entropy = ctx.saved_tensors
        grad = torch.zeros_like(logsumexp) if grads[0] is None else grads[0]
        pull = _Pull(grad, grads[1], logsumexp=logsumexp, entropy=entropy)
        factor = (pull.factor * ctx.scale)[:, None].to(hidden.dtype)
        scaled = hidden * factor
        to_hidden = torch.zeros_like(hidden, dtype=_wide(hidden.dtype))
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for first, rows, logits in _Tiles(hidden, weight, scale=ctx.scale):
            pulled = pull(logits).to(hidden.dtype)
            _add_product(to_hidden, pulled, right=rows)
            if to_weight is not None:
                torch.mm(pulled.T, scaled, out=to_weight[first : first + len(rows)])
        onehot = (grad * ctx.scale)[:, None].to(hidden.dtype)
        to_hidden = (weight[labels] * onehot).sub_(to_hidden * factor)
        if to_weight is not None:
            to_weight.neg_().index_add_(0, labels, hidden * onehot)
        return to_hidden.to(hidden.dtype), to_weight, None, None, None


class _Pull:
    """A tile of -d loss / d logits, but for its one-hot part, from the tile's logits.

    Without a gradient of the entropy it is p times ``factor``, a number per token, which is cheaper to apply to
    [tokens, width] than to [tokens, vocabulary]. With one it is all in the tile, and ``factor`` is 1.
    """

    def __init__(self, grad: Tensor, grad_entropy: Tensor | None, *, logsumexp: Tensor, entropy: Tensor) -> None:
        self.logsumexp = logsumexp[:, None]
        self.slope = None if grad_entropy is None else grad_entropy[:, None]
        self.offset = None if grad_entropy is None else (grad + grad_entropy * entropy)[:, None]
        self.factor = grad if grad_entropy is None else torch.ones_like(grad)

    def __call__(self, logits: Float[Tensor, "tokens tile"]) -> Float[Tensor, "tokens tile"]:
        """p, or p (grad + grad_entropy (log p + H)); overwrites ``logits``."""
        logp = logits.sub_(self.logsumexp)
        if self.slope is None or self.offset is None:
            return logp.exp_()
        p = logp.exp()
        return logp.mul_(self.slope).add_(self.offset).mul_(p)


def _add_product(total: Tensor, left: Tensor, *, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
