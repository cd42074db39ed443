# SPDX-License-Identifier: Apache-2.0
"""Roles: what the loop holds in place of an object."""

from contextlib import nullcontext

import pytest

from m2flow.errors import FlowError
from m2flow.flow.role import Role
from m2flow.flow.stream import Stream
from m2flow.runtime.context import Context
from m2flow.runtime.inline import Inline


class Double:
    def run(self, numbers, plus=0):
        for number in numbers:
            yield 2 * number + plus

    def total(self, numbers):
        return sum(numbers)

    def whoami(self, other):
        return other


def hosted(*targets):
    runtime = Inline()

    def call(name, method, args, kwargs):
        context = Context(seed=1, iteration=2, num_iterations=3, span=lambda name: nullcontext())
        return runtime.call(name, method, args=args, kwargs=kwargs, context=context)

    for index, target in enumerate(targets):
        runtime.add(f"role{index}", target)
    return [Role(f"role{index}", target, call=call) for index, target in enumerate(targets)]


def counting_source():
    numbers = iter(range(100))

    def draw(count):
        return Stream([next(numbers) for _ in range(count)], origin="source", refill=draw)

    return draw


def test_a_generator_method_gives_a_stream_of_its_items():
    (double,) = hosted(Double())
    assert list(double.run([1, 2], plus=1)) == [3, 5]


def test_another_method_gives_a_stream_of_its_value():
    (double,) = hosted(Double())
    assert double.total([1, 2]).get() == 3


def test_more_sends_new_source_items_through_the_same_calls():
    first, second = hosted(Double(), Double())
    stream = second.run(first.run(counting_source()(2)), plus=1)
    assert list(stream) == [1, 5]
    assert list(stream.more(3)) == [9, 13, 17]
    assert list(stream.more(1)) == [21]


def test_a_call_fed_by_two_growing_streams_cannot_grow():
    class Pair:
        def zip(self, left, right):
            yield from zip(left, right, strict=True)

    draw = counting_source()
    (pair,) = hosted(Pair())
    stream = pair.zip(draw(1), draw(1))
    assert list(stream) == [(0, 1)] and not stream.can_grow


def test_a_role_reaches_another_role_as_itself():
    target = Double()
    first, second = hosted(target, Double())
    assert second.whoami(first).get() is target


def test_a_misspelt_method_names_the_nearest():
    (double,) = hosted(Double())
    with pytest.raises(FlowError, match="did you mean 'total'"):
        double.totl([1])


def test_context_is_set_only_on_roles_that_declare_it():
    class Aware:
        context: Context | None = None

        def seed(self):
            assert self.context is not None
            return self.context.seed, self.context.iteration

    (aware,) = hosted(Aware())
    assert aware.seed().get() == (1, 2)
    unaware = Double()
    hosted(unaware)[0].total([1])
    assert not vars(unaware)


def test_an_error_in_a_role_reaches_the_loop_unchanged():
    class Broken:
        def run(self):
            raise ZeroDivisionError("mine")

    (broken,) = hosted(Broken())
    with pytest.raises(ZeroDivisionError, match="mine"):
        broken.run()
