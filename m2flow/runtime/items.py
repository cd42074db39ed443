# SPDX-License-Identifier: Apache-2.0
"""The items of a stream whose payload is elsewhere, as the driver reads them."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from m2flow.runtime.hub import Hub


class Items:
    """Waited for one by one, and kept once read."""

    def __init__(self, hub: Hub, number: int, *, read: Callable[[Any], Any]) -> None:
        self._hub, self._read_one = hub, read
        self.number = number
        """The hub's."""
        self._read: list[Any] = []
        weakref.finalize(self, hub.drop, number)

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self._read) or self._read_next():
            yield self._read[index]
            index += 1

    def _read_next(self) -> bool:
        handle = self._hub.item(self.number, len(self._read))
        self._read += () if handle is None else (self._read_one(handle),)
        return handle is not None

    @property
    def is_complete(self) -> bool:
        """Whether reading waits for nothing."""
        return self._hub.is_finished(self.number)

    def __len__(self) -> int:
        return self._hub.wait_finished(self.number)

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]
