# SPDX-License-Identifier: Apache-2.0
"""The lock of a slot: roles that share a device use it in turn."""

import heapq
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """Held by one call at a time; of those that are expected, the one that was issued first is next.

    A call that waits for items of another gives its turn away meanwhile, so that calls of one slot cannot block each
    other. Calls are expected from the moment they are submitted, so that all slots of a role that exchange among
    themselves come to the same one next.

    Args:
        switch: called with the name of the role whose turn begins, where it is another than the last one's.
    """

    def __init__(self, switch: Callable[[str], None] = lambda role: None) -> None:
        self._changed = threading.Condition()
        self._expected: list[int] = []
        self._held = False
        self._role: str | None = None
        self._switch = switch
        self.num_switches = 0
        """How often the slot went from one role to another."""

    def expect(self, call: int) -> None:
        """``call`` will take a turn; those issued after it wait for that."""
        with self._changed:
            heapq.heappush(self._expected, call)

    @contextmanager
    def turn(self, call: int, role: str) -> Iterator[None]:
        """Hold the slot for ``role``; the call is expected."""
        self._take(call, role)
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def pause(self, call: int, role: str) -> Iterator[None]:
        """Inside ``turn``: let others have the slot meanwhile."""
        self._give()
        try:
            yield
        finally:
            self.expect(call)
            self._take(call, role)

    def _take(self, call: int, role: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._held and self._expected[0] == call)
            heapq.heappop(self._expected)
            self._held = True
        if role != self._role:
            self.num_switches += self._role is not None
            self._role = role
            self._switch(role)

    def _give(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()
