# SPDX-License-Identifier: Apache-2.0
"""The sending side: two buffers in shared memory, written in turn, each version by one copy.

A buffer is written again only when nobody can still be reading the version in it. Each receiver answers with a receipt
of what it now has; a receipt that does not match is an error at once.
"""

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from m2flow.errors import TransportError, WeightsError
from m2flow.transport.block import ALIGNMENT
from m2flow.transport.segment import Segment, node_id
from m2flow.weights.base import Receipt, State, WeightsHandle, layout_of, num_bytes
from m2flow.weights.checksum import copied

NUM_BUFFERS = 2


@dataclass
class _Version:
    handle: WeightsHandle
    segment: Segment | None
    waiting: set[str]
    readers: set[str] = field(default_factory=set)
    """Receivers that may be looking at the buffer."""


class Publisher:
    """Publishes one policy's weights from this process.

    Args:
        is_shared: whether other processes receive them too; if not, nothing is copied and there is no checksum.
        every: how much of large tensors the checksum covers: all (1), or one byte in so many.
        node: names the machine whose processes can map this memory.
    """

    def __init__(self, *, is_shared: bool = True, every: int = 16, node: str | None = None) -> None:
        self.id = secrets.token_hex(8)
        self.address: tuple[str, int] | None = None
        self._is_shared, self._every, self._node = is_shared, every, node or node_id()
        self._versions: list[_Version] = []
        self._state: State = {}
        self._spare: list[Segment] = []

    def close(self) -> None:
        """Let go of all memory; receivers that use it in place keep theirs."""
        for segment in (*self._spare, *(version.segment for version in self._versions)):
            if segment is not None:
                segment.close()
        self._versions, self._spare, self._state = [], [], {}

    def publish(self, state: State, version: int, *, receivers: Iterable[str]) -> WeightsHandle:
        """Make ``state`` available to ``receivers`` under a version higher than any before.

        Raises:
            WeightsError: the version is not higher, or both buffers are still in use.
            TransportError: there is no memory for it.
        """
        newest = self._versions[-1].handle.version if self._versions else -1
        if version <= newest:
            raise WeightsError(f"version {version} follows version {newest}: versions must grow, from 0 at least")
        layout = layout_of(state)
        segment = self._buffer(num_bytes(layout)) if self._is_shared else None
        checksum = None
        if segment is not None:
            targets = {e.name: segment.bytes[ALIGNMENT + e.offset :][: e.size] for e in layout}
            checksum = copied(state, targets, every=self._every)
            stamp(segment.bytes, version)
        place = segment and segment.place
        key = (self.id, version)
        handle = WeightsHandle(version, checksum, self._every, layout, key, self._node, place, self.address)
        names = set(receivers)
        self._versions = [*self._versions[-NUM_BUFFERS + 1 :], _Version(handle, segment, names, set(names))]
        self._state = state
        return handle

    def _buffer(self, size: int) -> Segment:
        """A buffer that nobody reads, marked as holding no version."""
        if len(self._versions) == NUM_BUFFERS:
            oldest = self._versions[0]
            if oldest.readers:
                raise WeightsError(
                    f"version {oldest.handle.version} is still being read by {sorted(oldest.readers)}, and version "
                    f"{self._versions[1].handle.version} is in the other buffer: wait for their receipts, or drop them"
                )
            self._versions = self._versions[1:]
            if oldest.segment is not None:
                self._spare.append(oldest.segment)
        segment = self._spare.pop() if self._spare else None
        if segment is not None and segment.place.size < size + ALIGNMENT:
            segment.close()
            segment = None
        segment = segment or Segment(f"m2flow-{secrets.token_hex(8)}-weights", size + ALIGNMENT)
        stamp(segment.bytes, None)
        return segment

    def confirm(self, receipt: Receipt) -> None:
        """Compare what a receiver has with what was sent, and let go of what it needs no longer.

        Raises:
            WeightsError: it has other weights.
        """
        found = next((v for v in self._versions if v.handle.version == receipt.version), None)
        if found is None or receipt.receiver not in found.waiting:
            expected = {v.handle.version: sorted(v.waiting) for v in self._versions}
            raise WeightsError(
                f"'{receipt.receiver}' says it has version {receipt.version}; receipts are expected for {expected}"
            )
        if receipt.checksum != found.handle.checksum:
            raise WeightsError(
                f"the weights of version {receipt.version} did not arrive at '{receipt.receiver}': the checksum of "
                f"what it has is {receipt.checksum}, that of what was sent {found.handle.checksum}. Load all "
                "tensors under their own names and dtypes, and look for an engine that keeps copies of old weights"
            )
        found.waiting.discard(receipt.receiver)
        for version in self._versions:
            if version.handle.version < receipt.version or (version is found and not receipt.is_in_place):
                version.readers.discard(receipt.receiver)

    def missing(self, version: int) -> list[str]:
        """Receivers whose receipt for ``version`` has not come."""
        return sorted(r for v in self._versions if v.handle.version == version for r in v.waiting)

    def drop(self, receiver: str) -> None:
        """Expect nothing more from a receiver that is no more."""
        for version in self._versions:
            version.waiting.discard(receiver)
            version.readers.discard(receiver)

    def admit(self, receiver: str) -> WeightsHandle:
        """The newest version, for a receiver that has come since.

        Raises:
            WeightsError: nothing was published yet.
        """
        if not self._versions:
            raise WeightsError("there is no version yet: publish one first")
        self._versions[-1].waiting.add(receiver)
        self._versions[-1].readers.add(receiver)
        return self._versions[-1].handle

    def state(self, version: int) -> State:
        """The very tensors that were published, for receivers in this process.

        Raises:
            WeightsError: a newer version was published since.
        """
        newest = self._versions[-1].handle.version if self._versions else None
        if version != newest:
            raise WeightsError(f"version {version} is asked for by reference, and the newest is {newest}: receive that")
        return self._state

    @contextmanager
    def borrow(self, version: int) -> Iterator[np.ndarray]:
        """The bytes of a version, for a ``Server``; they stay until all receivers have sent their receipts.

        Raises:
            TransportError: it is gone.
        """
        found = next((v for v in self._versions if v.handle.version == version and v.segment is not None), None)
        if found is None or found.segment is None:
            raise TransportError(f"version {version} is no longer here")
        yield found.segment.bytes[ALIGNMENT : ALIGNMENT + num_bytes(found.handle.layout)]


def stamp(buffer: np.ndarray, version: int | None) -> None:
    """Write which version a buffer holds; None while it is being written."""
    buffer[:8].view(np.int64)[0] = 0 if version is None else version + 1


def require_stamp(buffer: np.ndarray, version: int) -> None:
    """Check which version a buffer holds.

    Raises:
        WeightsError: it is another one.
    """
    found = int(buffer[:8].view(np.int64)[0]) - 1
    if found != version:
        holds = f"version {found}" if found >= 0 else "none that is complete"
        raise WeightsError(
            f"the buffer of version {version} holds {holds}: a version is gone when all its receivers sent receipts of "
            "a later one; receive the newest"
        )
