# SPDX-License-Identifier: Apache-2.0
"""Items that this process wrote and that others read: where they are, who reads them, and when their memory is free.

An item lives until it was freed *and* the last lease on it has ended. Memory is used again, since fresh pages cost as
much as the copy itself.
"""

import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from m2flow.errors import TransportError
from m2flow.transport.block import ALIGNMENT, Packed, erase
from m2flow.transport.segment import Extents, Place, Segment, node_id

Address = tuple[str, int]
"""Host and port."""


class Key(NamedTuple):
    """Names an item: the arena that wrote it, and its number there, from 1."""

    arena: str
    number: int


class Handle(NamedTuple):
    """All that a reader needs to find an item; small, and picklable."""

    key: Key
    size: int
    """Of the block, in bytes."""
    node: str
    """Where its memory can be mapped."""
    place: Place | None
    """The segment; None where the block itself is in ``payload``."""
    offset: int
    """Of the block in the segment, in bytes."""
    payload: bytes | None
    address: Address | None
    """Where other nodes fetch it; None where the owner does not serve any."""


@dataclass
class _Block:
    item: Any
    segment: int | None
    offset: int
    size: int
    is_freed: bool = False
    leases: Counter[str] = field(default_factory=Counter)


class Arena:
    """The items of one process. All methods may be called from any thread.

    Args:
        max_bytes: of shared memory, at most.
        segment_bytes: how much is taken from the system at a time; larger items take as much as they need.
        inline_bytes: blocks up to this size travel in their handle and take no shared memory.
        node: names the machine whose processes can map this memory.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 16 * 2**30,
        segment_bytes: int = 64 * 2**20,
        inline_bytes: int = 8 * 2**10,
        node: str | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.node = node or node_id()
        self.address: Address | None = None
        self._max_bytes, self._segment_bytes, self._inline_bytes = max_bytes, segment_bytes, inline_bytes
        self._segments: list[tuple[Segment, Extents]] = []
        self._blocks: dict[int, _Block] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget all items. What readers have mapped stays theirs until they let go of it."""
        with self._lock:
            self._blocks.clear()
            for segment, _ in self._segments:
                segment.close()
            self._segments.clear()

    @property
    def num_bytes(self) -> int:
        """Shared memory taken from the system, whether or not items are in it."""
        return sum(segment.place.size for segment, _ in self._segments)

    @property
    def num_items(self) -> int:
        """Items that are not gone yet."""
        return len(self._blocks)

    def write(self, item: Any) -> Handle:
        """Copy the bytes of ``item`` to where others can read them; the item itself must not change any more.

        Raises:
            TransportError: it cannot be pickled, or there is no room for it.
        """
        packed, number = Packed(item), next(self._numbers)
        if packed.size <= self._inline_bytes:
            block = np.empty(packed.size, np.uint8)
            packed.write(block, number)
            self._blocks[number] = _Block(item, None, 0, packed.size)
            return self._handle(number, packed.size, payload=block.tobytes())
        i, offset = self._take(packed.size)
        segment = self._segments[i][0]
        packed.write(segment.bytes[offset : offset + packed.size], number)
        self._blocks[number] = _Block(item, i, offset, packed.size)
        return self._handle(number, packed.size, place=segment.place, offset=offset)

    def _handle(self, number: int, size: int, **where: Any) -> Handle:
        where = {"place": None, "offset": 0, "payload": None} | where
        return Handle(Key(self.id, number), size, self.node, address=self.address, **where)

    def _take(self, size: int) -> tuple[int, int]:
        """Segment and offset of free memory."""
        with self._lock:
            for i, (_, extents) in enumerate(self._segments):
                if (offset := extents.take(size)) is not None:
                    return i, offset
            self._grow(size)
            offset = self._segments[-1][1].take(size)
            assert offset is not None
            return len(self._segments) - 1, offset

    def _grow(self, size: int) -> None:
        room = self._max_bytes - self.num_bytes
        if size > room:
            free = sum(extents.num_free_bytes for _, extents in self._segments)
            raise TransportError(
                f"an item of {size:,} bytes does not fit: {self.num_bytes - free:,} of {self._max_bytes:,} bytes are "
                f"taken by {self.num_items} items that are still to be read. Let fewer or smaller items be on their "
                "way at a time, raise max_bytes, or look for a reader that keeps arrays it no longer needs"
            )
        size = max(size, min(self._segment_bytes, room // ALIGNMENT * ALIGNMENT))
        self._segments.append((Segment(f"m2flow-{self.id}-{len(self._segments)}", size), Extents(size)))

    def item(self, key: Key) -> Any:
        """The very object that was written.

        Raises:
            TransportError: it was freed.
        """
        return self._block(key).item

    def _block(self, key: Key) -> _Block:
        block = self._blocks.get(key.number) if key.arena == self.id else None
        if block is None or block.is_freed:
            raise TransportError(
                f"item {key.number} of arena {key.arena} is not here: it was freed, or belongs to another arena than "
                f"{self.id}; ask for an item before it is freed, and only its owner"
            )
        return block

    def lease(self, key: Key, reader: str = "") -> None:
        """Keep an item until ``release``, once more; ``reader`` says for whom.

        Raises:
            TransportError: it was freed before.
        """
        with self._lock:
            self._block(key).leases[reader] += 1

    def release(self, key: Key, reader: str = "") -> None:
        """End one lease.

        Raises:
            TransportError: that reader has none.
        """
        with self._lock:
            block = self._blocks.get(key.number)
            if block is None or not block.leases[reader]:
                raise TransportError(f"reader '{reader}' has no lease on {key}: release each lease once")
            block.leases[reader] -= 1
            self._collect(key.number, block)

    def drop(self, reader: str) -> None:
        """End all leases of a reader that is no more."""
        with self._lock:
            for number, block in list(self._blocks.items()):
                if block.leases.pop(reader, 0):
                    self._collect(number, block)

    def free(self, key: Key) -> None:
        """Say that nobody will ask for an item again; its memory is used again when the last lease has ended.

        Raises:
            TransportError: it was freed before.
        """
        with self._lock:
            block = self._block(key)
            block.is_freed, block.item = True, None
            self._collect(key.number, block)

    def _collect(self, number: int, block: _Block) -> None:
        if not block.is_freed or block.leases.total():
            return
        del self._blocks[number]
        if block.segment is not None:
            segment, extents = self._segments[block.segment]
            erase(segment.bytes[block.offset :])
            extents.give(block.offset, block.size)

    @contextmanager
    def borrow(self, number: int) -> Iterator[np.ndarray]:
        """The block of an item, which stays meanwhile: what ``serve`` sends to other nodes.

        Raises:
            TransportError: it was freed.
        """
        key = Key(self.id, number)
        with self._lock:
            block = self._block(key)
            if block.segment is None:
                raise TransportError(f"item {number} is in its handle: read it from there")
            self.lease(key, "served")
            taken = self._segments[block.segment][0].bytes[block.offset : block.offset + block.size]
        try:
            yield taken
        finally:
            self.release(key, "served")
