# SPDX-License-Identifier: Apache-2.0
"""Packed rows with shared prefixes: a group's prompt lies in the row once, followed by all its responses.

A response attends to the prompt and causally to itself, so that every token has the logits and the gradient that it has
in a sequence of its own, at the cost of one prompt instead of n. A response's last token predicts nothing and is left
out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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

    @cached_property
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
    that have about the same length, over the keys of the prompt and their own. The row is split, not sliced: a slice's
    gradient is as large as the row.
    """

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = list(spans)
        self._sizes = [size for span in self.spans for size in (span.prompt, sum(span.responses))]
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
        options = {"scale": scaling, "enable_gqa": query.shape[0] != key.shape[0]}
        parts = list(zip(*(x.split(self._sizes, dim=1) for x in (query, key, value)), strict=True))
        out: list[Tensor] = []
        for number, span in enumerate(self.spans):
            prompt, responses = (_Part(*part, options=options) for part in parts[2 * number : 2 * number + 2])
            out.append(prompt.causal())
            found: dict[int, Tensor] = {}
            each = responses.split(span.responses)
            for bucket in self._buckets[number]:
                mask = self._mask(span.prompt, span.responses[bucket[0]], like=query)
                found |= zip(bucket, prompt.continued([each[i] for i in bucket], mask=mask), strict=True)
            out += [found[i] for i in sorted(found)]
        return torch.cat(out)

    def _mask(self, prompt: int, longest: int, *, like: Tensor) -> Float[Tensor, "longest keys"]:
        """Added to the scores: a response's token sees the whole prompt and its response up to itself."""
        at = (prompt, longest, like.dtype, like.device)
        if at not in self._masks:
            seen = torch.ones(longest, prompt + longest, dtype=torch.bool, device=like.device).tril(prompt)
            self._masks[at] = like.new_zeros(longest, prompt + longest).masked_fill_(~seen, float("-inf"))
        return self._masks[at]


@dataclass(frozen=True)
class _Part:
    """Some tokens of a row, and how they attend."""

    query: Float[Tensor, "heads tokens dim"]
    key: Float[Tensor, "kv_heads tokens dim"]
    value: Float[Tensor, "kv_heads tokens dim"]
    options: dict[str, Any]

    def split(self, sizes: Sequence[int]) -> list["_Part"]:
        """One part after another."""
        columns = (x.split(list(sizes), dim=1) for x in (self.query, self.key, self.value))
        return [_Part(*pieces, options=self.options) for pieces in zip(*columns, strict=True)]

    def causal(self) -> Float[Tensor, "tokens heads dim"]:
        """Attention to itself alone."""
        q, k, v = (x[None] for x in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, **self.options)[0].transpose(0, 1)

    def continued(self, parts: Sequence["_Part"], *, mask: Tensor) -> Iterator[Float[Tensor, "length heads dim"]]:
        """Attention of ``parts`` to this one and to themselves, by ``mask``; the first of them is the longest.

        They are padded at the end, where none of their real tokens looks.
        """
        keys = _after(self.key, [part.key for part in parts])
        values = _after(self.value, [part.value for part in parts])
        q = _stack([part.query for part in parts])
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, **self.options).transpose(1, 2)
        for row, part in zip(out.unbind(), parts, strict=True):
            yield row[: part.query.shape[1]]


def _after(prompt: Float[Tensor, "heads prompt dim"], pieces: list[Tensor]) -> Float[Tensor, "n heads keys dim"]:
    return torch.cat([prompt.expand(len(pieces), -1, -1, -1), _stack(pieces)], 2)


def _stack(pieces: list[Tensor]) -> Float[Tensor, "n heads longest dim"]:
    longest = pieces[0].shape[1]
    return torch.stack([F.pad(piece, (0, 0, 0, longest - piece.shape[1])) for piece in pieces])


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
