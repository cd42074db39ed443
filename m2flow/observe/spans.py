# SPDX-License-Identifier: Apache-2.0
"""Timed spans: what a run spends its time on, per iteration and as a timeline for Perfetto or chrome://tracing.

A span opened inside another one on the same thread is its child; its path is ``parent/child``.
"""

import json
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from m2flow.observe.line_file import replace

ROOT = "iteration"
"""The span around each iteration. Paths leave it out: ``iteration/generate`` is ``generate``."""
BETWEEN = "between"
"""Stands before spans of the run's own thread that lie outside of any iteration."""
BACKGROUND = "background"
"""Stands before spans of other threads, which run at the same time as an iteration."""
MAX_EVENTS = 100_000
"""How many of the newest spans the timeline keeps."""

Event = tuple[str, float, float, int, int]
"""Path, start and end (seconds of ``time.perf_counter``), thread, iteration."""


Span = tuple[str, float, float]
"""Path, start and end (seconds since 1970), of a span that travels from one process to another."""


class _Span:
    """One timed block; made by ``Spans.open``."""

    __slots__ = ("_name", "_path", "_spans", "_start")

    def __init__(self, spans: "Spans", name: str) -> None:
        self._spans = spans
        self._name = name

    def __enter__(self) -> None:
        stack = self._spans.stack()
        self._path = f"{stack[-1]}/{self._name}"
        stack.append(self._path)
        if self._spans.on_enter is not None:
            self._spans.on_enter(self._path)
        self._start = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = time.perf_counter()
        self._spans.stack().pop()
        self._spans.done.append((self._path, self._start, end, threading.get_ident()))


class Spans:
    """Collects spans of all threads. ``on_enter`` is called with the path of each span that begins."""

    def __init__(self, on_enter: Callable[[str], None] | None = None) -> None:
        self.on_enter = on_enter
        self.done: deque[tuple[str, float, float, int]] = deque()
        self._threads = threading.local()
        self._owner = threading.get_ident()
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._num_events = 0
        self._epoch_s = time.time() - time.perf_counter()

    def open(self, name: str) -> _Span:
        """A context manager that times what is inside."""
        return _Span(self, name)

    def stack(self) -> list[str]:
        """Paths of the spans that are open on this thread, the outermost first, below the thread's own prefix."""
        try:
            return self._threads.stack
        except AttributeError:
            prefix = BETWEEN if threading.get_ident() == self._owner else BACKGROUND
            self._threads.stack = [prefix]
            return self._threads.stack

    def drain(self) -> list[Span]:
        """The spans that ended since the last call, for ``add`` in another process."""
        found = []
        while self.done:
            path, start, end, _ = self.done.popleft()
            found.append((path.partition("/")[2], self._epoch_s + start, self._epoch_s + end))
        return found

    def add(self, process: str, spans: Iterable[Span]) -> None:
        """Spans of another process, under its name."""
        thread = zlib.crc32(process.encode())
        for path, start, end in spans:
            self.done.append((f"{process}/{path}", start - self._epoch_s, end - self._epoch_s, thread))

    def take(self, iteration: int) -> dict[str, float]:
        """Seconds per path of the spans that ended since the last call; they now belong to ``iteration``.

        Threads go on adding spans meanwhile. The iteration itself is ``iteration``, its stages stand by their own
        names.
        """
        totals: dict[str, float] = {}
        while self.done:
            path, start, end, thread = self.done.popleft()
            path = short(path)
            totals[path] = totals.get(path, 0.0) + end - start
            self._events.append((path, start, end, thread, iteration))
            self._num_events += 1
        return {path: round(seconds, 6) for path, seconds in totals.items()}

    def write_trace(self, path: Path, *, before: int) -> None:
        """Save the timeline in Chrome's trace format. Spans of iterations below ``before`` already in the file stay.

        Raises:
            M2flowError: the disk is full.
        """
        old = [event for event in _read_events(path) if event["args"]["iteration"] < before]
        events = (old + [self._chrome(event) for event in self._events])[-MAX_EVENTS:]
        left_out = len(old) + self._num_events - len(events)
        trace = {"displayTimeUnit": "ms", "otherData": {"spans_left_out": left_out}, "traceEvents": events}
        replace(path, json.dumps(trace).encode())

    def _chrome(self, event: Event) -> dict[str, Any]:
        path, start, end, thread, iteration = event
        return {
            "name": path.rpartition("/")[2],
            "ph": "X",
            "ts": round((self._epoch_s + start) * 1e6, 1),
            "dur": round((end - start) * 1e6, 1),
            "pid": os.getpid(),
            "tid": thread,
            "args": {"iteration": iteration, "path": path},
        }


def _read_events(path: Path) -> list[dict[str, Any]]:
    # ``replace`` wrote it whole or not at all, so that a damaged file is somebody else's and may raise.
    return json.loads(path.read_bytes())["traceEvents"] if path.exists() else []


def short(path: str) -> str:
    """A path without the prefix that every span of an iteration has."""
    whole = f"{BETWEEN}/{ROOT}"
    return ROOT if path == whole else path.removeprefix(f"{whole}/")


def stages(times: Mapping[str, float]) -> dict[str, float]:
    """Of seconds per path, those parts that add up to the whole on the run's own thread, the rest as ``other``."""
    inside = {path: s for path, s in times.items() if "/" not in path and path != ROOT}
    outside = {path: s for path, s in times.items() if path.startswith(f"{BETWEEN}/") and path.count("/") == 1}
    rest = times.get(ROOT, 0.0) - sum(inside.values())
    return {**inside, "other": max(rest, 0.0), **outside} if ROOT in times else {**inside, **outside}
