# SPDX-License-Identifier: Apache-2.0
"""Streams: read as often as needed, and made longer at their source."""

import pytest

from m2flow.errors import FlowError
from m2flow.flow.stream import Stream


def test_a_stream_can_be_read_twice():
    stream = Stream([1, 2, 3], origin="rollout.generate")
    assert list(stream) == [1, 2, 3] and list(stream) == [1, 2, 3] and len(stream) == 3


def test_get_returns_the_only_item():
    assert Stream([{"loss": 0.5}], origin="learner.update").get() == {"loss": 0.5}


@pytest.mark.parametrize("items", [[], [1, 2]])
def test_get_refuses_a_stream_that_is_not_one_item(items):
    with pytest.raises(FlowError, match=f"learner.update made {len(items)} items"):
        Stream(items, origin="learner.update").get()


def test_a_stream_of_a_plain_list_cannot_grow_and_says_so():
    stream = Stream([1], origin="rollout.generate")
    assert not stream.can_grow
    with pytest.raises(FlowError, match=r"rollout.generate cannot make more items"):
        stream.more(2)
