# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2flow.errors import LearnerError
from m2flow.trainers.packing.cut import Sizes, cut


def _cut(shapes: list[tuple[int, list[int]]], bound: int) -> tuple[list[list[int]], dict[int, int]]:
    rows = [(g, p, r) for g, (p, responses) in enumerate(shapes) for r in responses]
    groups, prompts, responses = zip(*rows, strict=True)
    sizes = Sizes(groups=groups, prompts=prompts, responses=responses)
    parts = cut(range(len(rows)), sizes, bound=bound)
    tokens = {}
    for k, part in enumerate(parts):
        prompts = {rows[i][0]: rows[i][1] for i in part}
        tokens[k] = sum(prompts.values()) + sum(rows[i][2] - 1 for i in part)
    return parts, tokens


SHAPES = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=6)), min_size=1, max_size=8
)


@given(SHAPES, st.integers(49, 200))
def test_every_sample_is_in_one_micro_batch_and_none_exceeds_the_bound(
    shapes: list[tuple[int, list[int]]], bound: int
) -> None:
    parts, tokens = _cut(shapes, bound)
    assert sorted(i for part in parts for i in part) == list(range(sum(len(r) for _, r in shapes)))
    assert max(tokens.values()) <= bound
    assert all(part == sorted(part) for part in parts)


def test_equal_groups_are_spread_evenly_instead_of_filling_the_first_micro_batch() -> None:
    _, tokens = _cut([(10, [11, 11])] * 6, bound=130)
    assert list(tokens.values()) == [90, 90]


def test_a_group_larger_than_the_bound_is_split_and_each_part_carries_the_prompt() -> None:
    parts, tokens = _cut([(10, [11] * 4)], bound=35)
    assert parts == [[0, 1], [2, 3]]
    assert list(tokens.values()) == [30, 30]


def test_a_single_response_larger_than_the_bound_is_refused_with_both_numbers() -> None:
    with pytest.raises(LearnerError, match=r"prompt of 10 tokens with a response of 31 .* 40 packed .*microbatch=39"):
        _cut([(10, [5, 31])], bound=39)
