# SPDX-License-Identifier: Apache-2.0
"""Slots as threads of the test's own process: the whole runtime but for what starts processes."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from m2flow.flow.stream import Stream
from m2flow.runtime.calls import Call
from m2flow.runtime.context import Context
from m2flow.runtime.devices import SlotConfig
from m2flow.runtime.distributed import Distributed
from m2flow.runtime.hosts import Host
from m2flow.runtime.placement import StageConfig
from m2flow.runtime.slot import Slot
from m2flow.runtime.wire import Address


class Threads:
    """``Hosts`` whose slots get copies of roles, as processes would."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.slots: list[Slot] = []
        self.submitted: list[Call] = []
        self.died: Callable[[int], None] = lambda slot: None

    host = "127.0.0.1"

    def discover(self) -> list[SlotConfig]:
        return [SlotConfig(kind="cpu", cores=(i,), memory_bytes=1) for i in range(self.num_slots)]

    def start(
        self, slots: Sequence[SlotConfig], hub: Address, *, make_stream: Any, died: Callable[[int], None]
    ) -> list[Host]:
        self.died = died
        self.slots = [Slot(i, hub, make_stream=make_stream) for i in range(len(slots))]
        return [_Copying(slot) for slot in self.slots]

    def close(self) -> None:
        self.slots = []


class _Copying:
    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self.submit = slot.submit
        self.free = slot.free

    def host(self, roles: Mapping[str, Any]) -> None:
        self._slot.host(copy.deepcopy(dict(roles)))


class Flow:
    """A runtime with roles, called as a run calls it."""

    def __init__(self, roles: Mapping[str, Any], *, num_slots: int, pins: Mapping[str, StageConfig]) -> None:
        self.hosts = Threads(num_slots)
        self.spans: list[Any] = []
        self.runtime = Distributed(
            self.hosts, pins=pins, make_stream=Stream, spans=lambda slot, spans: self.spans.extend(spans)
        )
        self.roles = dict(roles)
        for name, role in self.roles.items():
            self.runtime.add(name, role)

    def __call__(self, role: str, method: str, *args: Any, refill: Any = None, **kwargs: Any) -> Stream[Any]:
        context = Context(seed=7, iteration=3, num_iterations=9, span=lambda name: None)  # pyright: ignore
        items = self.runtime.call(role, method, args=args, kwargs=kwargs, context=context)
        return Stream(items, origin=f"{role}.{method}", refill=refill)


@pytest.fixture
def flow() -> Iterator[Callable[..., Flow]]:
    made: list[Flow] = []

    def make(num_slots: int, pins: Mapping[str, StageConfig] | None = None, **roles: Any) -> Flow:
        made.append(Flow(roles, num_slots=num_slots, pins=pins or {}))
        return made[-1]

    yield make
    for one in made:
        one.runtime.close()
