# SPDX-License-Identifier: Apache-2.0
"""Roles on several slots: what each call is given, in which order calls run, and what happens when one fails."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from m2flow.errors import CheckpointError, ConfigError, FlowError, RewardError
from m2flow.flow.stream import Stream
from m2flow.runtime.calls import everywhere
from m2flow.runtime.placement import StageConfig


class Doubler:
    """A role that any number of slots share."""

    context: Any = None
    max_slots: int | None = None

    def double(self, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        for number in numbers:
            time.sleep(0.002)
            yield 2 * number, self.context.slot

    def total(self, numbers: Iterable[int]) -> int:
        return sum(numbers)

    @everywhere
    def remember(self, weights: Any) -> int:
        self.weights = weights
        return self.context.slot

    def recall(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
        for _ in numbers:
            yield self.context.slot, getattr(self.weights, "value", self.weights)


class Weights:
    """A role that others are given."""

    def __init__(self) -> None:
        self.value = 0

    def grow(self, numbers: Iterable[int]) -> int:
        for number in numbers:
            time.sleep(0.002)
            self.value += number
        return self.value

    def snapshot(self) -> dict[str, int]:
        return {"value": self.value}

    def state(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def pin(*slots: int, **options: int) -> StageConfig:
    return StageConfig(slots=slots, **options)


@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_items_are_shared_among_slots_and_none_is_lost_or_doubled(flow: Any, num_slots: int):
    f = flow(num_slots, doubler=Doubler())
    results = list(f("doubler", "double", list(range(40))))
    assert sorted(value for value, _ in results) == [2 * i for i in range(40)]
    assert {slot for _, slot in results} == set(range(num_slots))


def test_a_call_returns_before_its_results_are_there_and_reading_waits(flow: Any):
    f = flow(2, doubler=Doubler())
    f("doubler", "total", [1]).get()
    began = time.perf_counter()
    stream = f("doubler", "double", list(range(200)))
    issued = time.perf_counter() - began
    assert len(list(stream)) == 200
    assert issued < time.perf_counter() - began - issued


def test_a_method_that_gives_one_value_sees_all_items_of_what_several_slots_made(flow: Any):
    f = flow(3, {"sum": pin(2)}, doubler=Doubler(), sum=Doubler())
    doubled = f("doubler", "double", list(range(10)))
    assert sum(value for value, _ in doubled) == 90
    halves = Stream([1, 2, 3], origin="list")
    assert f("sum", "total", halves).get() == 6


def test_results_are_consumed_while_they_are_made(flow: Any):
    class Slow:
        def make(self) -> Iterator[int]:
            yield 1
            assert seen.wait(10)
            yield 2

    class Eager:
        def read(self, items: Iterable[int]) -> int:
            total = 0
            for item in items:
                seen.set()
                total += item
            return total

    seen = threading.Event()
    f = flow(2, {"slow": pin(0), "eager": pin(1)}, slow=Slow(), eager=Eager())
    assert f("eager", "read", f("slow", "make")).get() == 3


@pytest.mark.parametrize("where", [0, 1])
def test_a_role_that_is_given_to_another_is_as_after_the_calls_issued_before(flow: Any, where: int):
    f = flow(2, {"weights": pin(0), "doubler": pin(where)}, weights=Weights(), doubler=Doubler())
    values = []
    for _ in range(3):
        doubled = f("doubler", "double", list(range(5)))
        f("weights", "grow", Stream([1, 1], origin="list"))
        f("doubler", "remember", f.roles["weights"])
        values += [seen["value"] if isinstance(seen, dict) else seen for _, seen in f("doubler", "recall", [0])]
        assert len(doubled) == 5
    assert values == [2, 4, 6]


def test_every_copy_of_a_role_sees_a_call_that_runs_everywhere(flow: Any):
    all_slots = threading.Barrier(3)

    class Meeting(Doubler):
        def recall(self, numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
            for place, number in enumerate(numbers):
                # A slot that comes late would find nothing left.
                if place == 0:
                    all_slots.wait(30)
                yield from super().recall([number])

    f = flow(3, {"weights": pin(0)}, weights=Weights(), doubler=Meeting())
    assert len(f("doubler", "remember", f.roles["weights"])) == 1
    seen = {slot for slot, _ in f("doubler", "recall", list(range(60)))}
    assert seen == {0, 1, 2}


def test_a_bound_makes_the_producer_wait_and_two_roles_of_one_slot_do_not_block_each_other(flow: Any):
    f = flow(1, {"doubler": pin(0, bound=2)}, doubler=Doubler(), sum=Doubler())
    doubled = f("doubler", "double", list(range(30)))
    assert f("sum", "total", Stream([a for a, _ in doubled], origin="list")).get() == 870


def test_further_items_are_drawn_once_for_all_slots_that_ask(flow: Any):
    class Twice:
        context: Any = None
        max_slots: int | None = None

        @everywhere
        def read(self, items: Any) -> list[int]:
            first = list(items)
            return [*first, *items.more(2), *items.more(1)]

    drawn: list[int] = []

    def refill(number: int) -> Stream[int]:
        begin = 10 + len(drawn)
        drawn.extend(range(begin, begin + number))
        return Stream(drawn[-number:], origin="source")

    f = flow(2, twice=Twice())
    source = Stream([1, 2], origin="source", refill=refill)
    assert f("twice", "read", source).get() == [1, 2, 10, 11, 12]
    f.runtime.wait()
    assert drawn == [10, 11, 12]


class Failing:
    """Raises at one item."""

    def score(self, numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            if number == 3:
                raise ValueError("three")
            yield number

    def refuse(self) -> None:
        raise RewardError("no column 'answer'")


def test_an_error_says_role_and_slot_and_reaches_all_that_wait(flow: Any):
    f = flow(2, {"failing": pin(1)}, failing=Failing(), doubler=Doubler())
    scored = f("failing", "score", [1, 2, 3, 4])
    doubled = f("doubler", "total", scored)
    with pytest.raises(FlowError, match=r"failing\.score on slot 1 raised ValueError: three") as caught:
        doubled.get()
    assert "in score" in "".join(caught.value.__notes__)
    with pytest.raises(FlowError, match="three"):
        f.runtime.wait()
    with pytest.raises(FlowError, match="three"):
        f("doubler", "total", [1])


def test_an_error_of_ours_keeps_its_kind_and_text(flow: Any):
    f = flow(1, failing=Failing())
    with pytest.raises(RewardError) as caught:
        f("failing", "refuse").get()
    assert str(caught.value) == "no column 'answer'"
    assert caught.value.__notes__[0].startswith("in failing.refuse on slot 0:")


def test_a_slot_that_dies_fails_what_waits_for_it(flow: Any):
    class Stuck:
        def stay(self) -> Iterator[int]:
            yield 1
            threading.Event().wait()

    f = flow(2, {"stuck": pin(1)}, stuck=Stuck())
    stream = iter(f("stuck", "stay"))
    assert next(stream) == 1
    f.hosts.died(1)
    with pytest.raises(FlowError, match=r"slot 1 died .* with .*stuck\.stay on it"):
        next(stream)


def test_a_state_comes_back_and_with_it_what_was_given_to_other_roles(flow: Any):
    pins = {"weights": pin(1), "doubler": pin(0)}
    first = flow(2, pins, weights=Weights(), doubler=Doubler())
    first("weights", "grow", Stream([5], origin="list")).get()
    first("doubler", "remember", first.roles["weights"])
    saved = first.runtime.state()
    assert saved["weights"] == {"value": 5}
    second = flow(2, pins, weights=Weights(), doubler=Doubler())
    second("doubler", "total", [1]).get()
    second.runtime.load_state(saved)
    assert second("doubler", "recall", [0]).get() == (0, {"value": 5})


def test_a_role_that_was_on_other_slots_says_how_many(flow: Any):
    class Counter(Weights):
        max_slots: int | None = None

    first = flow(2, counter=Counter())
    assert len(first("counter", "grow", [1]).get() and first.runtime.state()["counter"]["slots"]) == 2
    second = flow(2, {"counter": pin(0)}, counter=Counter())
    second("counter", "grow", [1]).get()
    with pytest.raises(CheckpointError, match="'counter' on 2 slots, the plan on 1"):
        second.runtime.load_state(first.runtime.state())
    with pytest.raises(CheckpointError, match=r"holds the roles \['other'\], this flow has \['counter'\]"):
        second.runtime.load_state({"other": {}})


def test_what_cannot_be_shared_or_passed_says_so(flow: Any):
    f = flow(2, {"failing": pin(0)}, doubler=Doubler(), failing=Failing())
    with pytest.raises(FlowError, match="is given 0 streams and runs on 2 slots"):
        f("doubler", "double", 3).get()
    g = flow(2, {"failing": pin(0), "doubler": pin(1)}, doubler=Doubler(), failing=Failing())
    with pytest.raises(FlowError, match="let it have a method `snapshot`"):
        g("doubler", "remember", g.roles["failing"])


def test_roles_and_pins_come_before_the_first_call(flow: Any):
    f = flow(1, doubler=Doubler())
    f("doubler", "total", [1]).get()
    with pytest.raises(FlowError, match="comes after the first call"):
        f.runtime.add("late", Doubler())
    with pytest.raises(FlowError, match="pin before it"):
        f.runtime.pin("doubler", pin(0))


def test_impossible_pins_are_all_named_with_what_is_possible(flow: Any):
    pins = {"doubler": pin(0, 5), "weights": pin(0, 1), "writer": pin(0)}
    f = flow(2, pins, doubler=Doubler(), weights=Weights())
    with pytest.raises(ConfigError) as caught:
        f("doubler", "total", [1])
    text = str(caught.value)
    assert "there is no slot 5; the slots are 0 to 1" in text
    assert "pin.weights: 2 slots, and it can use 1" in text
    assert "there is no role 'writer'; the roles are doubler, weights" in text


def test_items_are_released_when_the_script_lets_go_of_them(flow: Any):
    f = flow(2, doubler=Doubler())
    for _ in range(3):
        assert len(list(f("doubler", "double", list(range(10))))) == 10
    f.runtime.wait()
    assert f.runtime._hub.open_streams() <= 1
