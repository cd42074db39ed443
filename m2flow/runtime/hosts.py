# SPDX-License-Identifier: Apache-2.0
"""What starts the processes of slots, as the driver sees it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from m2flow.runtime.calls import Call
from m2flow.runtime.devices import SlotConfig
from m2flow.runtime.wire import Address


class Host(Protocol):
    """A slot as the driver reaches it. ``submit`` and ``free`` return at once."""

    def host(self, roles: Mapping[str, Any]) -> None:
        """See ``Slot.host``."""
        ...

    def submit(self, call: Call) -> None:
        """See ``Slot.submit``."""
        ...

    def free(self, handles: Sequence[Any]) -> None:
        """See ``Slot.free``."""
        ...


class Hosts(Protocol):
    """What finds devices and starts the slots' processes on them."""

    @property
    def host(self) -> str:
        """The driver's address, as the slots' machines reach it."""
        ...

    def discover(self) -> list[SlotConfig]:
        """The slots there are."""
        ...

    def start(
        self, slots: Sequence[SlotConfig], hub: Address, *, make_stream: Callable[..., Any], died: Callable[[int], None]
    ) -> list[Host]:
        """Their processes; ``died`` is called with the number of a slot whose process ends before ``close``."""
        ...

    def close(self) -> None:
        """End them."""
        ...
