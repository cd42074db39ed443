# SPDX-License-Identifier: Apache-2.0
"""The streams' bookkeeping: who claims what, who waits, what fails."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from m2flow.errors import FlowError
from m2flow.runtime.hub import Hub


class At(NamedTuple):
    """A handle."""

    key: Any


def at(*keys: Any) -> list[tuple[int, At]]:
    return [(0, At(key)) for key in keys]


def filled(hub: Hub, number: int) -> int:
    return hub.filled(at(*range(number)))


def test_two_consumers_each_get_every_item_and_the_slots_of_one_share_them():
    hub = Hub()
    stream = filled(hub, 6)
    assert hub.claim(stream, "score", num_items=4) == at(*range(4))
    assert hub.claim(stream, "learn", num_items=9) == at(*range(6))
    assert hub.claim(stream, "score", num_items=4) == at(4, 5)
    assert hub.claim(stream, "score", num_items=4) == []


def test_slots_that_share_take_smaller_parts_towards_the_end():
    hub = Hub()
    stream = filled(hub, 32)
    taken = []
    while part := hub.claim(stream, "generate", num_items=64, shares=2):
        taken.append(len(part))
    assert taken == [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert sum(taken) == 32


def test_a_claim_waits_for_an_item_and_the_end_of_a_stream_is_no_item():
    hub = Hub()
    stream = hub.open(producers=2)
    assert hub.claim(stream, "c", num_items=1, wait=False) is None
    with ThreadPoolExecutor() as pool:
        claimed = pool.submit(hub.claim, stream, "c", num_items=1)
        hub.put(stream, at("a"))
        assert claimed.result(5) == at("a")
        ended = pool.submit(hub.claim, stream, "c", num_items=1)
        hub.finish(stream)
        assert not ended.done()
        hub.finish(stream)
        assert ended.result(5) == []


def test_a_full_stream_makes_its_producer_wait_for_a_claim():
    hub = Hub()
    stream = hub.open(producers=1, bound=2)
    hub.put(stream, at(0, 1))
    assert not hub.put(stream, at(2), wait=False)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(hub.put, stream, at(2))
        hub.claim(stream, "c", num_items=1)
        assert waiting.result(5)
    assert hub.claim(stream, "c", num_items=9) == at(1, 2)


def test_a_failed_stream_raises_in_all_that_wait_for_it_and_the_first_error_stays():
    hub = Hub()
    stream = hub.open(producers=1)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(hub.claim, stream, name, num_items=1) for name in "ab"]
        hub.fail(stream, FlowError("first"))
        hub.fail(stream, FlowError("second"))
        for one in waiting:
            with pytest.raises(FlowError, match="first"):
                one.result(5)
    with pytest.raises(FlowError, match="first"):
        hub.put(stream, at(1))


def test_items_are_released_when_nobody_can_read_them_any_more():
    released = []
    hub = Hub(released.extend)
    stream = filled(hub, 2)
    hub.hold(stream)
    hub.drop(stream)
    assert released == []
    hub.drop(stream)
    assert released == at(0, 1)
    assert hub.open_streams() == 0


def test_an_item_that_a_reader_still_uses_is_released_when_it_has_given_it_back():
    released = []
    hub = Hub(released.extend)
    stream = filled(hub, 2)
    hub.claim(stream, "c", num_items=1)
    hub.drop(stream)
    assert released == at(1)
    hub.returned([0])  # pyright: ignore[reportArgumentType]
    assert released == at(1, 0)


def test_many_threads_claim_every_item_once():
    hub, found, lock = Hub(), [], threading.Lock()
    stream = hub.open(producers=4, bound=3)

    def produce(first: int) -> None:
        for i in range(first, first + 50):
            hub.put(stream, at(i))
        hub.finish(stream)

    def consume() -> None:
        while part := hub.claim(stream, "c", num_items=3, shares=3):
            with lock:
                found.extend(part)

    with ThreadPoolExecutor(7) as pool:
        work = [pool.submit(produce, 50 * i) for i in range(4)] + [pool.submit(consume) for _ in range(3)]
        for one in work:
            one.result(20)
    assert sorted(found) == at(*range(200))
