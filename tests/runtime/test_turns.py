# SPDX-License-Identifier: Apache-2.0
"""Roles of one slot take turns."""

import threading
from concurrent.futures import ThreadPoolExecutor

from m2flow.runtime.turns import Turns


def test_the_call_that_was_issued_first_has_the_next_turn():
    turns, order = Turns(), []
    for number in (1, 2, 3):
        turns.expect(number)

    def work(number: int) -> None:
        with turns.turn(number, "role"):
            order.append(number)

    with ThreadPoolExecutor(3) as pool:
        for one in [pool.submit(work, number) for number in (3, 2, 1)]:
            one.result(5)
    assert order == [1, 2, 3]


def test_a_call_that_waits_lets_others_have_the_slot_and_comes_back():
    turns, order, may_go_on = Turns(), [], threading.Event()
    turns.expect(1)
    turns.expect(2)

    def first() -> None:
        with turns.turn(1, "a"):
            order.append("first begins")
            with turns.pause(1, "a"):
                assert may_go_on.wait(5)
            order.append("first ends")

    def second() -> None:
        with turns.turn(2, "b"):
            order.append("second")
        may_go_on.set()

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(second), pool.submit(first)]:
            one.result(5)
    assert order == ["first begins", "second", "first ends"]


def test_a_switch_is_told_once_for_each_change_of_role():
    switched: list[str] = []
    turns = Turns(switched.append)
    for number, role in enumerate(["a", "a", "b", "a"]):
        turns.expect(number)
        with turns.turn(number, role):
            pass
    assert switched == ["a", "b", "a"]
    assert turns.num_switches == 2
