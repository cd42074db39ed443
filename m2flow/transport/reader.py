# SPDX-License-Identifier: Apache-2.0
"""Items that other processes wrote, by the shortest way there is from here."""

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from m2flow.transport.arena import Arena, Handle, Key
from m2flow.transport.block import unpack
from m2flow.transport.peers import Peers
from m2flow.transport.segment import mapped, node_id


def _ignore(_key: Key) -> None:
    """For readers whose items are never freed."""


class Reader:
    """Reads handles in one process. All methods may be called from any thread.

    In the process that wrote it, an item is the very object that was written. On the same node its arrays are read-only
    views of the writer's memory; from another node, read-only views of a copy.

    Args:
        arena: of this process, if it has one.
        on_release: told the key of each item that was read, once, when this process needs the writer's memory no longer
            (when the last array on it has died, maybe at once). It is called wherever that happens, within garbage
            collection too: it must neither block nor take a lock. ``queue.SimpleQueue().put`` is such a function.
        node: names the machine whose shared memory can be mapped here.
        authkey: the run's secret, for items of other nodes.
        timeout_s: how long another node may be silent.
    """

    def __init__(
        self,
        arena: Arena | None = None,
        *,
        on_release: Callable[[Key], None] = _ignore,
        node: str | None = None,
        authkey: bytes = b"",
        timeout_s: float = 60.0,
    ) -> None:
        self._arena, self._on_release = arena, on_release
        self._node = node or node_id()
        self._peers = Peers(authkey=authkey, timeout_s=timeout_s)
        self._segments: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def read(self, handle: Handle) -> Any:
        """The item.

        Raises:
            TransportError: it was freed, or its owner is gone.
        """
        if self._arena is not None and handle.key.arena == self._arena.id:
            item = self._arena.item(handle.key)
            self._on_release(handle.key)
            return item
        if handle.payload is not None:
            self._on_release(handle.key)
            return unpack(handle.payload, handle.key.number)
        if handle.node == self._node:
            return unpack(self._leased(handle), handle.key.number)
        with self._peers.open(handle) as incoming:
            block = np.empty(incoming.size, np.uint8)
            incoming.into(block)
        self._on_release(handle.key)
        return unpack(block, handle.key.number)

    def _leased(self, handle: Handle) -> np.ndarray:
        """The block where it lies; all arrays of the item keep this very object alive, and so the lease."""
        view = self._segment(handle)[handle.offset : handle.offset + handle.size]
        block = np.frombuffer(view.data, np.uint8)
        weakref.finalize(block, partial(self._on_release, handle.key)).atexit = False
        return block

    def _segment(self, handle: Handle) -> np.ndarray:
        assert handle.place is not None
        with self._lock:
            found = self._segments.get(handle.place.name)
            if found is None:
                found = self._segments[handle.place.name] = mapped(handle.place)
            return found

    def forget(self, arena: str) -> None:
        """Let go of the memory of an arena that is no more; arrays that are still in use keep their part."""
        with self._lock:
            for name in [name for name in self._segments if name.split("-")[1] == arena]:
                del self._segments[name]

    def close(self) -> None:
        """Let go of all memory and connections."""
        with self._lock:
            self._segments.clear()
        self._peers.close()
