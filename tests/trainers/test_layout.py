# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m2flow.data.samples import Group
from m2flow.trainers.packing.layout import Span, pack
from m2flow.trainers.packing.texts import token_logprobs

SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=5)), min_size=1, max_size=4
)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _flat(nested: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.cat([x for group in nested for x in group])


@given(shapes=SHAPES, temperature=st.sampled_from([1.0, 0.5, 1.7]), bound=st.integers(20, 200))
@FEW
def test_log_probs_equal_those_of_a_padded_batch_of_separate_sequences(
    shapes: Any,
    temperature: float,
    bound: int,
    make_policy: Any,
    plain_model: Any,
    make_groups: Any,
    plain_logprobs: Any,
) -> None:
    groups = make_groups(shapes)
    ours = token_logprobs(make_policy(), groups, temperature=temperature, max_tokens=bound)
    with torch.no_grad():
        wanted = plain_logprobs(plain_model, groups, temperature)
    assert [[len(x) for x in g] for g in ours] == [responses for _, responses in shapes]
    torch.testing.assert_close(_flat(ours), _flat(wanted), atol=1e-5, rtol=1e-5)


@pytest.fixture
def groups(make_groups: Callable[..., list[Group]]) -> list[Group]:
    """Two groups of ragged responses."""
    return make_groups([(4, [6, 3, 8]), (5, [7, 7])])


def _changed(policy: Any, groups: list[Group], change: Callable[[], None]) -> list[list[list[bool]]]:
    before = token_logprobs(policy, groups)
    change()
    after = token_logprobs(policy, groups)
    return [
        [(abs(a - b) > 1e-6).tolist() for a, b in zip(x, y, strict=True)] for x, y in zip(before, after, strict=True)
    ]


def test_changing_a_response_changes_later_tokens_of_that_response_and_nothing_else(
    make_policy: Any, groups: list[Group]
) -> None:
    def change() -> None:
        groups[0].samples[2].token_ids[3] = (groups[0].samples[2].token_ids[3] + 1) % 61

    moved = _changed(make_policy(), groups, change)
    assert moved[0] == [[False] * 6, [False] * 3, [False] * 3 + [True] * 5]
    assert moved[1] == [[False] * 7] * 2


def test_changing_a_prompt_changes_every_token_of_its_own_group_and_nothing_else(
    make_policy: Any, groups: list[Group]
) -> None:
    def change() -> None:
        groups[1].prompt_ids[0] = (groups[1].prompt_ids[0] + 1) % 61

    moved = _changed(make_policy(), groups, change)
    assert not any(token for response in moved[0] for token in response)
    assert all(token for response in moved[1] for token in response)


def test_the_row_holds_the_prompt_once_and_no_last_tokens() -> None:
    row = pack([(np.array([5, 6]), [np.array([7, 8, 9]), np.array([3])]), (np.array([4]), [np.array([1, 2])])])
    assert row.token_ids.tolist() == [5, 6, 7, 8, 4, 1]
    assert row.positions.tolist() == [0, 1, 2, 3, 0, 1]
    # Both responses of the first group begin after token 6, at place 1.
    assert row.predicting.tolist() == [1, 2, 3, 1, 4, 5]
    assert row.targets.tolist() == [7, 8, 9, 3, 1, 2]


def test_responses_of_about_the_same_length_attend_in_one_call() -> None:
    assert Span(0, 4, (10, 3, 9, 0, 8, 10)).buckets() == [[0, 5, 2, 4], [1]]
