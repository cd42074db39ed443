# SPDX-License-Identifier: Apache-2.0
"""Who has which item: the streams of a run, without their payload.

One hub serves a run, in the driver's process. Producers put handles of items, consumers claim them. A consumer that
several slots share gives each item to the first slot that asks: a free slot takes the next one, none waits for the
slowest. A stream with a bound makes its producers wait while that many items are not claimed yet.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from m2flow.errors import FlowError
from m2flow.transport.arena import Key

Handle = tuple[int, Any]
"""The slot that wrote an item (-1: the driver), and the arena's handle of it, which has a ``key``."""
DRIVER = -1


@dataclass(kw_only=True)
class _Feed:
    """One stream. ``unfinished`` producers still add to it; ``cursors`` say how far each consumer has come."""

    unfinished: int
    bound: int = 0
    handles: list[Handle] = field(default_factory=list)
    cursors: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None
    holders: int = 1
    """Who may still read it: the driver's stream and unfinished calls."""

    @property
    def is_full(self) -> bool:
        """Whether a producer has to wait: for the consumer that is furthest on, so that two cannot block each other."""
        claimed = max(self.cursors.values(), default=0)
        return bool(self.bound) and len(self.handles) - claimed >= self.bound


class Hub:
    """All methods may be called from any thread; those that wait say so.

    Args:
        release: called with the handles of a stream that nobody can read any more.
    """

    def __init__(self, release: Callable[[Sequence[Handle]], None] = lambda handles: None) -> None:
        self._changed = threading.Condition()
        self._feeds: dict[int, _Feed] = {}
        self._release = release
        self._num_streams = 0
        self._leases: Counter[Key] = Counter()
        """How many readers still use an item's memory."""
        self._doomed: dict[Key, Handle] = {}
        """Items that nobody can read any more, and some still use."""
        self.claims: dict[str, int] = defaultdict(int)
        """Items that each consumer's slots have taken, by ``consumer@slot``."""

    def open(self, *, producers: int, bound: int = 0) -> int:
        """A new stream with so many producers; returns its number."""
        with self._changed:
            self._num_streams += 1
            self._feeds[self._num_streams] = _Feed(unfinished=producers, bound=bound)
            return self._num_streams

    def filled(self, handles: Sequence[Handle]) -> int:
        """A new stream that has all its items already."""
        number = self.open(producers=0)
        self._feeds[number].handles.extend(handles)
        return number

    def put(self, stream: int, handles: Sequence[Handle], *, wait: bool = True) -> bool:
        """Add items; waits while the stream is full. Without ``wait`` a full one takes none, and the answer is False.

        Raises:
            FlowError: the stream has failed meanwhile.
        """
        with self._changed:
            feed = self._feeds[stream]
            if feed.is_full and not wait:
                return False
            self._changed.wait_for(lambda: not feed.is_full or feed.error is not None)
            _raise(feed)
            feed.handles.extend(handles)
            self._changed.notify_all()
            return True

    def finish(self, stream: int) -> None:
        """One producer has put its last item."""
        with self._changed:
            feed = self._feeds[stream]
            feed.unfinished = max(feed.unfinished - 1, 0)
            self._changed.notify_all()

    def fail(self, stream: int, error: BaseException) -> None:
        """What claims from the stream, or puts into it, raises ``error`` from now on; the first one stays."""
        with self._changed:
            if (feed := self._feeds.get(stream)) is not None:
                feed.error = feed.error or error
                feed.unfinished = 0
                self._changed.notify_all()

    def claim(
        self, stream: int, consumer: str, *, num_items: int, shares: int = 1, slot: int | None = None, wait: bool = True
    ) -> list[Handle] | None:
        """The next items for ``consumer``, at most ``num_items``; empty at the end of the stream.

        Slots of one consumer share it: of what is left each takes at most the ``2 * shares``-th part at a time (guided
        self-scheduling, Polychronopoulos and Kuck 1987), so that all end at about the same time. Waits for an item;
        without ``wait`` the answer may be ``None``, not yet.

        Raises:
            Exception: what the stream failed with.
        """
        with self._changed:
            feed = self._feeds[stream]
            begin = feed.cursors.setdefault(consumer, 0)
            self._changed.notify_all()

            def is_ready() -> bool:
                return len(feed.handles) > feed.cursors[consumer] or not feed.unfinished

            if not is_ready() and not wait:
                return None
            self._changed.wait_for(is_ready)
            _raise(feed)
            begin = feed.cursors[consumer]
            left = len(feed.handles) - begin
            fair = left if shares == 1 else max(1, left // (2 * shares))
            taken = feed.handles[begin : begin + min(num_items, fair)]
            self._leases.update(handle.key for _, handle in taken)
            feed.cursors[consumer] = begin + len(taken)
            if slot is not None:
                self.claims[f"{consumer}@{slot}"] += len(taken)
            self._changed.notify_all()
            return taken

    def hold(self, stream: int) -> None:
        """One more may read the stream."""
        with self._changed:
            self._feeds[stream].holders += 1

    def drop(self, stream: int) -> None:
        """One less may read the stream; with the last one its items are released."""
        with self._changed:
            feed = self._feeds[stream]
            feed.holders -= 1
            if feed.holders:
                return
            del self._feeds[stream]
            used = {handle.key: (owner, handle) for owner, handle in feed.handles if self._leases[handle.key]}
            self._doomed.update(used)
        self._release([(owner, handle) for owner, handle in feed.handles if handle.key not in used])

    def returned(self, keys: Iterable[Key]) -> None:
        """Readers use the memory of these items no longer."""
        free = []
        with self._changed:
            for key in keys:
                self._leases[key] -= 1
                if not self._leases[key]:
                    del self._leases[key]
                    free += [self._doomed.pop(key)] if key in self._doomed else []
        self._release(free)

    def wait_finished(self, stream: int) -> int:
        """Wait for the last producer; the number of items.

        Raises:
            Exception: what the stream failed with.
        """
        with self._changed:
            feed = self._feeds[stream]
            feed.bound = 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: not feed.unfinished)
            _raise(feed)
            return len(feed.handles)

    def is_finished(self, stream: int) -> bool:
        """Whether no producer adds to it any more."""
        with self._changed:
            return not self._feeds[stream].unfinished

    def item(self, stream: int, index: int) -> Handle | None:
        """The handle of one item, waited for; ``None`` past the end. Reading it counts as the driver's claim.

        Raises:
            Exception: what the stream failed with.
        """
        with self._changed:
            feed = self._feeds[stream]
            feed.cursors["driver"] = max(feed.cursors.get("driver", 0), index)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(feed.handles) > index or not feed.unfinished)
            _raise(feed)
            if index >= len(feed.handles):
                return None
            self._leases[feed.handles[index][1].key] += 1
            return feed.handles[index]

    def open_streams(self) -> int:
        """How many streams hold items."""
        with self._changed:
            return len(self._feeds)


def _raise(feed: _Feed) -> None:
    if feed.error is not None:
        raise feed.error


def lost(slot: int, calls: Sequence[str]) -> FlowError:
    """The error of everything that waits for a slot whose process has died."""
    return FlowError(
        f"the process of slot {slot} died (no memory, or killed) with {', '.join(calls) or 'no call'} on it: see its "
        "log; go on from the newest checkpoint with --resume auto"
    )
