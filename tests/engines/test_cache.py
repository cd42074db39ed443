# SPDX-License-Identifier: Apache-2.0
"""Rows that leave, seats in a rectangle, and attention with a cache against attention without one."""

from typing import Any

import numpy as np
import pytest
import torch

from m2flow.engines.decoding.cache import CacheLayout, Decode, Gaps, Piece, Prefill, Seats, Store
from m2flow.policies.language.probe import CausalLayout

CPU = torch.device("cpu")


def test_rows_from_the_end_fill_the_holes():
    column = np.array([10, 11, 12, 13, 14, 15])
    gaps = Gaps.of(np.array([True, False, True, False, True, True]))
    assert (gaps.holes.tolist(), gaps.movers.tolist(), gaps.num_left) == ([1, 3], [4, 5], 4)
    assert gaps.close(column).tolist() == [10, 14, 12, 15]


@pytest.mark.parametrize(("stays", "left"), [([True, True], [0, 1]), ([False, False], []), ([True, False], [0])])
def test_nothing_moves_where_there_is_no_hole(stays: list[bool], left: list[int]):
    gaps = Gaps.of(np.array(stays))
    assert not len(gaps.movers) and gaps.close(np.arange(2)).tolist() == left


def test_a_full_rectangle_needs_no_index():
    seats = Seats.of(np.array([0, 0, 1, 1, 2, 2]), 3, device=CPU)
    assert (seats.num_lanes, seats.width, seats.rows, seats.seats) == (3, 2, None, None)


def test_rows_find_their_lane_and_come_back():
    lanes = np.array([1, 0, 1, 2, 1])
    seats = Seats.of(lanes, 3, device=CPU)
    rows = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 2, 3, 4)
    gathered = seats.gather(rows)
    assert gathered.shape == (3, 2, 9, 4)
    owners = gathered[:, 0, ::3, 0].tolist()
    assert owners[0][:1] == [1] and owners[1] == [0, 2, 4] and owners[2][:1] == [3]
    assert torch.equal(seats.scatter(gathered), rows)


def test_growth_keeps_what_is_there_and_stops_at_the_limit():
    store = Store(2, 16)
    keys, values = store.layer(0, torch.zeros(3, 1, 4))
    keys.copy_(torch.randn(keys.shape))
    store.reserve(17, used=16, limit=20)
    grown, _ = store.layer(0, torch.zeros(3, 1, 4))
    assert grown.shape == (2, 3, 20, 4) and torch.equal(grown[:, :, :16], keys)
    assert values.shape == (2, 3, 16, 4)


def test_memory_of_rows_goes_when_half_of_them_are_gone():
    store = Store(4, 16)
    keys, _ = store.layer(0, torch.zeros(3, 1, 4))
    keys.copy_(torch.randn(keys.shape))
    kept = keys[2, :, :5].clone()
    store.drop(Gaps.of(np.array([True, False, True, True])), used=5)
    assert store.num_allocated == 4
    store.drop(Gaps.of(np.array([False, False, True])), used=5)
    left, _ = store.layer(0, torch.zeros(3, 1, 4))
    assert store.num_allocated == 1 and left.untyped_storage().nbytes() == 3 * 16 * 4 * 4
    assert torch.equal(left[0, :, :5], kept)


def named(parts: Any) -> Any:
    """Query, key and value by name."""
    return dict(zip(("query", "key", "value"), parts, strict=True))


class Texts:
    """Random queries, keys and values: two prompts of 5 and 3 tokens, and rows of 2 tokens in lanes 0, 1, 0."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.prompts = [self.make(5, draw), self.make(3, draw)]
        self.lanes = np.array([0, 1, 0])
        self.rows = [self.make(2, draw) for _ in self.lanes]

    @staticmethod
    def make(length: int, draw: torch.Generator) -> list[torch.Tensor]:
        return [torch.randn(heads, length, 4, generator=draw) for heads in (6, 2, 2)]

    def whole(self, row: int) -> torch.Tensor:
        """Attention of a row's tokens, its prompt computed with it."""
        prompt = self.prompts[self.lanes[row]]
        parts = [torch.cat(pair, dim=1) for pair in zip(prompt, self.rows[row], strict=True)]
        return CausalLayout((parts[0].shape[1],)).attend(0, **named(parts), scaling=0.5)[-2:]

    def packed(self, column: int) -> list[torch.Tensor]:
        """Token ``column`` of all rows side by side."""
        return [torch.cat([row[i][:, column : column + 1] for row in self.rows], dim=1) for i in range(3)]


@pytest.mark.parametrize("cuts", [((0, 5), (0, 3)), ((0, 2), (2, 3), (3, 5))])
def test_prompts_attend_as_without_a_cache_in_one_piece_or_several(cuts: tuple[tuple[int, int], ...]):
    texts, store = Texts(), Store(2, 5)
    whole = [CausalLayout((p[0].shape[1],)).attend(0, **named(p), scaling=0.5) for p in texts.prompts]
    lanes = [0, 1] if len(cuts) == 2 else [0, 0, 0]
    for lane, (start, stop) in zip(lanes, cuts, strict=True):
        layout = CacheLayout([Prefill(store, [Piece(lane, start, stop)])])
        part = [x[:, start:stop] for x in texts.prompts[lane]]
        out = layout.attend(0, **named(part), scaling=0.5)
        torch.testing.assert_close(out, whole[lane][start:stop], atol=1e-6, rtol=1e-5)


def test_rows_attend_to_their_prompt_and_themselves_while_other_prompts_are_computed():
    texts, prompts, responses, others = Texts(), Store(2, 5), Store(3, 2), Store(1, 3)
    pieces = [Piece(0, 0, 5), Piece(1, 0, 3)]
    both: Any = [torch.cat(pair, dim=1) for pair in zip(*texts.prompts, strict=True)]
    Prefill(prompts, pieces).attend(0, **named(both), scaling=0.5)
    mask = torch.zeros(2, 1, 1, 5)
    mask[1, ..., 3:] = -torch.inf
    seats = Seats.of(texts.lanes, 2, device=CPU)
    for column in range(2):
        decode = Decode(prompts, responses, seats=seats, prompt_mask=mask, used=column)
        layout = CacheLayout([decode, Prefill(others, [Piece(0, 0, 3)])])
        mixed: Any = [torch.cat(pair, dim=1) for pair in zip(texts.packed(column), texts.prompts[1], strict=True)]
        out = layout.attend(0, **named(mixed), scaling=0.5)
        for row in range(3):
            torch.testing.assert_close(out[row], texts.whole(row)[column], atol=1e-6, rtol=1e-5)
        alone = CausalLayout((3,)).attend(0, **named(texts.prompts[1]), scaling=0.5)
        torch.testing.assert_close(out[3:], alone, atol=1e-6, rtol=1e-5)


def test_rows_that_moved_keep_their_keys():
    store = Store(4, 3)
    keys, values = store.layer(0, torch.zeros(1, 1, 2))
    keys.copy_(torch.arange(4.0).view(4, 1, 1, 1).expand_as(keys))
    values.copy_(-keys)
    store.drop(Gaps.of(np.array([False, True, True, True])), used=3)
    keys, values = store.layer(0, torch.zeros(1, 1, 2))
    assert keys[:, 0, 0, 0].tolist() == [3, 1, 2] and values[:, 0, 2, 1].tolist() == [-3, -1, -2]
