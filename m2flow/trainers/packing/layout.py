# SPDX-License-Identifier: Apache-2.0
"""Packed rows with shared prefixes: a group's prompt lies in the row once, followed by all its responses.

A response attends to the prompt and causally to itself, so that every token has the logits and the gradient that it has
in a sequence of its own, at the cost of one prompt instead of n. A response's last token predicts nothing and is left
out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from m2flow.policies.language.attention import Layout

PADDING_SHARE = 0.2
"""Responses attend in one call if at most this share of the longest one's length is padding."""


@dataclass(frozen=True)
class Span:
    """Where one group lies in the row: ``prompt`` tokens from ``start``, then the responses one after another."""

    start: int
    prompt: int
    responses: tuple[int, ...]

    @property
    def offsets(self) -> list[int]:
        """Where each response begins."""
        ends = np.cumsum((self.start + self.prompt, *self.responses))
        return [int(end) for end in ends[:-1]]

    def buckets(self) -> list[list[int]]:
        """Indices of the non-empty responses, longest first, cut where lengths differ too much for one call."""
        order = sorted((i for i, n in enumerate(self.responses) if n), key=lambda i: -self.responses[i])
        out: list[list[int]] = []
        for i in order:
            if out and self.responses[i] >= (1 - PADDING_SHARE) * self.responses[out[-1][0]]:
                out[-1].append(i)
            else:
                out.append([i])
        return out


class PackedLayout(Layout):
    """Which token sees which, for a row of ``spans``.

    No mask over the whole row exists: each prompt is one causal call, the responses of a group are one call for all
    that have about the same length, over the keys of the prompt and their own.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = list(spans)
        self._buckets = [span.buckets() for span in self.spans]
        self._masks: dict[tuple[int, int, torch.dtype, torch.device], Tensor] = {}

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Attention within each span; see ``Layout.attend``."""
        row = _Row(query, key, value=value, scaling=scaling)
        pieces: list[Tensor] = []
        for span, buckets in zip(self.spans, self._buckets, strict=True):
            pieces.append(row.prompt(span))
            responses = {}
            for bucket in buckets:
                mask = self._mask(span.prompt, span.responses[bucket[0]], like=query)
                responses |= row.responses(span, bucket, mask=mask)
            pieces += [responses[i] for i in sorted(responses)]
        return torch.cat(pieces)

    def _mask(self, prompt: int, longest: int, *, like: Tensor) -> Float[Tensor, "longest keys"]:
        """Added to the scores: a response's token sees the whole prompt and its response up to itself."""
        at = (prompt, longest, like.dtype, like.device)
        if at not in self._masks:
            seen = torch.ones(longest, prompt + longest, dtype=torch.bool, device=like.device).tril(prompt)
            self._masks[at] = like.new_zeros(longest, prompt + longest).masked_fill_(~seen, float("-inf"))
        return self._masks[at]


class _Row:
    """One layer's queries, keys and values, and attention over parts of them."""

    def __init__(self, query: Tensor, key: Tensor, *, value: Tensor, scaling: float) -> None:
        self.query, self.key, self.value = query, key, value
        self.options = {"scale": scaling, "enable_gqa": query.shape[0] != key.shape[0]}

    def prompt(self, span: Span) -> Float[Tensor, "prompt heads dim"]:
        """Causal attention of the prompt to itself."""
        at = slice(span.start, span.start + span.prompt)
        q, k, v = (x[None, :, at] for x in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **self.options)[0].transpose(0, 1)

    def responses(self, span: Span, bucket: list[int], *, mask: Tensor) -> dict[int, Float[Tensor, "length heads dim"]]:
        """The outputs of the responses in ``bucket``. Padding lies after every real token, where none of them looks."""
        offsets, lengths = [span.offsets[i] for i in bucket], [span.responses[i] for i in bucket]
        prompt = slice(span.start, span.start + span.prompt)

        def keys(x: Tensor) -> Tensor:
            shared = x[None, :, prompt].expand(len(bucket), -1, -1, -1)
            return torch.cat([shared, _stack(x, offsets, lengths=lengths)], 2)

        q = _stack(self.query, offsets, lengths=lengths)
        out = F.scaled_dot_product_attention(q, keys(self.key), keys(self.value), attn_mask=mask, **self.options)
        out = out.transpose(1, 2)
        return {i: out[place, :length] for place, (i, length) in enumerate(zip(bucket, lengths, strict=True))}


def _stack(x: Float[Tensor, "heads tokens dim"], offsets: list[int], *, lengths: list[int]) -> Tensor:
    """[n, heads, longest, dim]: the pieces of ``x`` at ``offsets``, padded with zeros on the right."""
    longest = lengths[0]
    if all(length == longest for length in lengths) and offsets == list(
        range(offsets[0], offsets[0] + longest * len(offsets), longest)
    ):
        block = x[:, offsets[0] : offsets[0] + longest * len(offsets)]
        return block.unflatten(1, (len(offsets), longest)).transpose(0, 1)
    pieces = [x[:, at : at + n] for at, n in zip(offsets, lengths, strict=True)]
    return torch.stack([F.pad(p, (0, 0, 0, longest - p.shape[1])) for p in pieces])


@dataclass(frozen=True)
class PackedRow:
    """A row ready for ``Llm.hidden``, and where its predictions are.

    ``predicting[i]`` is the token whose hidden state predicts ``targets[i]``; predictions are in the order group,
    response, response token. All samples of a group have their first token predicted at the prompt's last.
    """

    token_ids: Int[Tensor, "tokens"]
    positions: Int[Tensor, "tokens"]
    predicting: Int[Tensor, "predictions"]
    targets: Int[Tensor, "predictions"]
    layout: PackedLayout


def row_tokens(prompt: int, responses: Sequence[int]) -> int:
    """How many tokens a group takes in a row: its prompt once, and each response but for its last token."""
    return prompt + sum(max(n - 1, 0) for n in responses)


def pack(groups: Sequence[tuple[np.ndarray, Sequence[np.ndarray]]], device: torch.device | str = "cpu") -> PackedRow:
    """One row of ``groups``: each a prompt's token ids [P], P > 0, and its responses' token ids [R_i]."""
    spans, ids, positions, predicting, targets = [], [], [], [], []
    start = 0
    for prompt, responses in groups:
        lengths = tuple(max(len(r) - 1, 0) for r in responses)
        spans.append(span := Span(start, len(prompt), lengths))
        ids += [prompt, *(r[:-1] for r in responses)]
        positions += [np.arange(len(prompt)), *(len(prompt) + np.arange(n) for n in lengths)]
        for response, offset, length in zip(responses, span.offsets, lengths, strict=True):
            last = start + len(prompt) - 1
            predicting.append(np.append([last], np.arange(offset, offset + length))[: len(response)])
            targets.append(response)
        start += len(prompt) + sum(lengths)
    return PackedRow(
        token_ids=_tensor(ids, device),
        positions=_tensor(positions, device),
        predicting=_tensor(predicting, device),
        targets=_tensor(targets, device),
        layout=PackedLayout(spans),
    )


def _tensor(parts: list[np.ndarray], device: torch.device | str) -> Int[Tensor, "n"]:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
