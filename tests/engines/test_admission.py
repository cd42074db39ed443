# SPDX-License-Identifier: Apache-2.0
"""Who begins when, counted by hand. Prompts have 10 tokens, responses at most 5."""

import numpy as np
import pytest

from m2flow.data.samples import Prompt
from m2flow.engines.decoding.admission import Admission, Room
from m2flow.engines.decoding.cohort import Pending
from m2flow.errors import EngineError


def admission(num_groups: int, num_samples: int, *, batch: int = 8, prefill: int = 100, cache: int = 1000) -> Admission:
    prompts = [Prompt(id=f"p{i}", text="?") for i in range(num_groups)]
    groups = [Pending(prompt=p, prompt_ids=np.zeros(10, np.int64), num_samples=num_samples) for p in prompts]
    room = Room(max_batch_size=batch, max_prefill_tokens=prefill, max_cache_tokens=cache)
    return Admission(groups, room, max_new_tokens=5)


def begun(waiting: Admission, rows: int = 0, tokens: int = 0) -> list[tuple[str, int]]:
    return [(lane.pending.prompt.id, len(lane.indices)) for lane in waiting.next(used_rows=rows, used_tokens=tokens)]


def test_groups_begin_in_order_while_there_are_rows():
    waiting = admission(3, 3)
    assert begun(waiting) == [("p0", 3), ("p1", 3)]
    assert begun(waiting, rows=6) == []
    assert begun(waiting, rows=5) == [("p2", 3)] and not waiting


def test_prompts_of_one_forward_stay_under_the_limit_but_one_may_be_longer():
    assert begun(admission(3, 1, prefill=25)) == [("p0", 1), ("p1", 1)]
    assert begun(admission(3, 1, prefill=5)) == [("p0", 1)]


def test_the_cache_has_room_for_a_prompt_once_and_all_its_responses():
    assert begun(admission(3, 2, cache=40)) == [("p0", 2), ("p1", 2)]
    assert begun(admission(3, 2, cache=39)) == [("p0", 2)]
    assert begun(admission(3, 2, cache=40), tokens=21) == []


def test_a_short_prompt_takes_the_room_of_the_longest_that_it_begins_with():
    groups = [
        Pending(prompt=Prompt(id=str(length), text="?"), prompt_ids=np.zeros(length, np.int64), num_samples=1)
        for length in (20, 2)
    ]
    for cache, first in ((50, ["20", "2"]), (49, ["20"])):  # 2 x 20 + 2 x 5 <= 50
        room = Room(max_batch_size=8, max_prefill_tokens=100, max_cache_tokens=cache)
        assert [prompt for prompt, _ in begun(Admission(groups, room, max_new_tokens=5))] == first


def test_a_group_that_is_too_large_is_cut():
    waiting = admission(1, 7, batch=3)
    assert [begun(waiting) for _ in range(3)] == [[("p0", 3)], [("p0", 3)], [("p0", 1)]] and not waiting
    waiting = admission(1, 7, cache=32)  # 10 + 4 x 5 <= 32
    assert [begun(waiting) for _ in range(2)] == [[("p0", 4)], [("p0", 3)]]


def test_new_ones_wait_for_a_quarter_of_the_batch_unless_they_are_the_last():
    assert begun(admission(20, 1), rows=7) == []
    assert begun(admission(20, 1), rows=6) == [("p0", 1), ("p1", 1)]
    assert begun(admission(1, 1), rows=7) == [("p0", 1)]


def test_a_sample_that_never_fits_is_an_error():
    with pytest.raises(
        EngineError, match=r"prompt 'p0' has 10 tokens; with max_new_tokens 5 .* max_cache_tokens of 14"
    ):
        admission(1, 1, cache=14)
    assert begun(admission(1, 1, cache=15)) == [("p0", 1)]
