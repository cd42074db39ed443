# SPDX-License-Identifier: Apache-2.0
"""Keys and values of everything that is being generated, and how the tokens of one forward attend to them.

A cohort is a number of prompts that were admitted together. Its responses grow in lockstep, so that they all have the
same length and none is padded for another; each prompt's keys are kept once, and all its responses attend to them in
one product.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from m2flow.policies.language.attention import Layout

GROWTH = 16
"""Rows grow by half, to a multiple of this many tokens."""

Pair = tuple[Tensor, Tensor]
"""Keys and values of one layer: [rows, kv_heads, tokens, dim] each."""


class Store:
    """Keys and values of all layers, dense: one row a sequence, as many as there are sequences."""

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.num_rows = num_rows
        self.num_allocated = num_rows
        """Rows that take memory: at most twice those that there are, and one."""
        self.capacity = capacity
        """Tokens that a row has room for."""
        self._layers: dict[int, Pair] = {}

    def layer(self, layer: int, like: Float[Tensor, "kv_heads tokens dim"]) -> Pair:
        """All rows of a layer, made of zeros when first asked for (a zero that is not attended to does no harm)."""
        if layer not in self._layers:
            shape = (self.num_rows, like.shape[0], self.capacity, like.shape[2])
            self._layers[layer] = like.new_zeros(shape), like.new_zeros(shape)
        keys, values = self._layers[layer]
        return keys[: self.num_rows], values[: self.num_rows]

    def reserve(self, num_tokens: int, *, used: int, limit: int) -> None:
        """Make room for ``num_tokens`` in each row; rows will never hold more than ``limit``, and now hold ``used``."""
        if num_tokens <= self.capacity:
            return
        wanted = max(num_tokens, self.capacity + self.capacity // 2)
        self.capacity = min(limit, -(-wanted // GROWTH) * GROWTH)
        self._move(used)

    def _move(self, used: int) -> None:
        """Into new memory, of just the size that is needed."""
        self.num_allocated = self.num_rows
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = self._moved(keys, used), self._moved(values, used)

    def _moved(self, old: Tensor, used: int) -> Tensor:
        new = old.new_empty(self.num_rows, old.shape[1], self.capacity, old.shape[3])
        new[:, :, :used] = old[: self.num_rows, :, :used]
        return new

    def drop(self, gaps: "Gaps", *, used: int) -> None:
        """Keep ``gaps.num_left`` rows: those from the end fill the holes. Where half are gone, so is their memory."""
        self.num_rows = gaps.num_left
        if len(gaps.holes):
            for tensor in (tensor for pair in self._layers.values() for tensor in pair):
                holes, movers = (torch.from_numpy(part).to(tensor.device) for part in (gaps.holes, gaps.movers))
                tensor[holes, :, :used] = tensor[movers, :, :used]
        if 2 * self.num_rows <= self.num_allocated:
            self._move(used)


@dataclass(frozen=True)
class Gaps:
    """How the rows that stay become the first ones: row ``movers[i]`` goes to ``holes[i]``, nothing else moves."""

    holes: Int[np.ndarray, "moves"]
    movers: Int[np.ndarray, "moves"]
    num_left: int

    @classmethod
    def of(cls, stays: Bool[np.ndarray, "rows"]) -> "Gaps":
        """Fewest moves for the rows that stay."""
        num_left = int(stays.sum())
        return cls(np.flatnonzero(~stays[:num_left]), num_left + np.flatnonzero(stays[num_left:]), num_left)

    def close(self, column: np.ndarray) -> np.ndarray:
        """``column`` with its rows moved; what is left of it, not copied."""
        column[self.holes] = column[self.movers]
        return column[: self.num_left]


class Part(ABC):
    """Some of the tokens of a forward: how many they are, and how they attend."""

    num_tokens: int

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """As ``Layout.attend``, for these tokens."""


Inputs = tuple[Part, Int[np.ndarray, "tokens"], Int[np.ndarray, "tokens"]]
"""A part of a forward, its tokens, and their positions."""


class CacheLayout(Layout):
    """One token for each active sample, and prompts of new ones, in one packed row."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Each part attends to its own sequences; see ``Layout.attend``."""
        out, start = [], 0
        for part in self.parts:
            at = slice(start, start + part.num_tokens)
            out.append(part.attend(layer, query[:, at], key=key[:, at], value=value[:, at], scaling=scaling))
            start += part.num_tokens
        return out[0] if len(out) == 1 else torch.cat(out)


@dataclass(frozen=True)
class Piece:
    """Tokens ``start`` to ``stop`` of the prompt in ``lane``."""

    lane: int
    start: int
    stop: int


class Prefill(Part):
    """Prompts, or one piece of a long one: each token sees its own prompt up to itself."""

    def __init__(self, prompts: Store, pieces: Sequence[Piece]) -> None:
        self.prompts, self.pieces = prompts, pieces
        self.num_tokens = sum(piece.stop - piece.start for piece in pieces)

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Keeps keys and values of the pieces, then attends."""
        keys, values = self.prompts.layer(layer, key)
        heads, _, dim = query.shape
        query = query.unflatten(0, (key.shape[0], -1))
        out, at = [], 0
        for piece in self.pieces:
            now = slice(at, at + piece.stop - piece.start)
            for kept, new in ((keys, key), (values, value)):
                kept[piece.lane, :, piece.start : piece.stop] = new[:, now]
            seen, held = (part[piece.lane, :, None, : piece.stop] for part in (keys, values))
            out.append(_causal(query[:, :, now], seen, values=held, start=piece.start, scaling=scaling))
            at = now.stop
        return torch.cat(out, dim=2).reshape(heads, -1, dim).transpose(0, 1)


def _causal(query: Tensor, keys: Tensor, *, values: Tensor, start: int, scaling: float) -> Tensor:
    """Attention of [kv_heads, share, tokens, dim] queries, of which the first is token number ``start``.

    The key heads are expanded by a stride of zero, not repeated.
    """
    keys, values = (part.expand(-1, query.shape[1], -1, -1) for part in (keys, values))
    mask = None
    if start:
        tokens = torch.arange(start, keys.shape[2], device=query.device)
        mask = torch.arange(keys.shape[2], device=query.device) <= tokens[:, None]
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling
    )


@dataclass(frozen=True)
class Seats:
    """Which row sits where: a rectangle [lanes, width], where lanes with fewer rows have empty seats."""

    num_lanes: int
    width: int
    rows: Int[Tensor, "seats"] | None
    """The row in each seat, any where it is empty; ``None`` where row i sits in seat i."""
    seats: Int[Tensor, "rows"] | None
    """The seat of each row."""

    @classmethod
    def of(cls, lanes: Int[np.ndarray, "rows"], num_lanes: int, *, device: torch.device) -> "Seats":
        """Seats for rows that belong to ``lanes``."""
        counts = np.bincount(lanes, minlength=num_lanes)
        width = int(counts.max())
        order = np.argsort(lanes, kind="stable")
        seats = np.empty_like(lanes)
        seats[order] = lanes[order] * width + np.arange(len(lanes)) - (counts.cumsum() - counts)[lanes[order]]
        if np.array_equal(seats, np.arange(num_lanes * width)):
            return cls(num_lanes, width, None, None)
        rows = np.zeros(num_lanes * width, dtype=np.int64)
        rows[seats] = np.arange(len(lanes))
        return cls(num_lanes, width, *(torch.from_numpy(part).to(device) for part in (rows, seats)))

    def gather(self, rows: Float[Tensor, "rows kv_heads share n"]) -> Float[Tensor, "lanes kv_heads width_share n"]:
        """The rows of each lane side by side, so that one product with the lane's prompt serves them all."""
        seated = rows if self.rows is None else rows[self.rows]
        return seated.unflatten(0, (self.num_lanes, self.width)).transpose(1, 2).flatten(2, 3)

    def scatter(self, lanes: Float[Tensor, "lanes kv_heads width_share n"]) -> Float[Tensor, "rows kv_heads share n"]:
        """Back to rows: the inverse of ``gather``."""
        seated = lanes.unflatten(2, (self.width, -1)).transpose(1, 2).flatten(0, 1)
        return seated if self.seats is None else seated[self.seats]


class Decode(Part):
    """One token for each row: it sees the prompt of the row's lane, and its response, itself included."""

    def __init__(
        self, prompts: Store, responses: Store, *, seats: Seats, prompt_mask: Tensor | None, used: int
    ) -> None:
        self.prompts, self.responses = prompts, responses
        self.seats, self.prompt_mask = seats, prompt_mask
        self.used = used
        """Tokens that the responses' rows hold before this one."""
        self.num_tokens = responses.num_rows

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Keeps the new keys and values, then attends.

        The query heads that share a key head are taken as several queries of that head, so keys are never repeated.
        """
        prompt_keys, prompt_values = self.prompts.layer(layer, key)
        keys, values = self._append(layer, key, value=value)
        rows = (query * scaling).transpose(0, 1).unflatten(1, (key.shape[0], -1))
        on_prompt = self.seats.gather(rows) @ prompt_keys.transpose(2, 3)
        if self.prompt_mask is not None:
            on_prompt += self.prompt_mask
        scores = torch.cat((self.seats.scatter(on_prompt), rows @ keys.transpose(2, 3)), dim=3)
        weights = scores.softmax(3, dtype=torch.float32).to(scores.dtype)
        num_prompt = prompt_keys.shape[2]
        out = weights[..., num_prompt:] @ values
        out += self.seats.scatter(self.seats.gather(weights[..., :num_prompt]) @ prompt_values)
        return out.flatten(1, 2)

    def _append(self, layer: int, key: Tensor, *, value: Tensor) -> Pair:
        keys, values = self.responses.layer(layer, key)
        keys[:, :, self.used] = key.transpose(0, 1)
        values[:, :, self.used] = value.transpose(0, 1)
        return keys[:, :, : self.used + 1], values[:, :, : self.used + 1]
