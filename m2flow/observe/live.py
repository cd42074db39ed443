# SPDX-License-Identifier: Apache-2.0
"""The live display on a terminal: a few lines at the bottom, everything else scrolls by above them.

It is redrawn when a stage begins and when an iteration ends, never by a thread. What the script prints or logs goes
above it; a ``breakpoint()`` puts it away first.
"""

import io
import logging
import os
import pdb
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from m2flow.observe.headlines import HELD_OUT, KL, SPEEDS, SUCCESS, clock, figure, sparkline
from m2flow.observe.progress import Progress
from m2flow.observe.spans import short

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
REDRAW_S = 0.05
"""Stages shorter than this are not worth a redraw each."""
MIN_TITLE = 8
"""Columns that the run's name keeps on any terminal."""
HEIGHT = 3
"""Lines of the display, always."""
WIPE = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (HEIGHT - 1)
"""Clears the display and goes to where it began; the cursor stands on its last line."""


class Above(io.TextIOBase):
    """Stands in for standard output or error: whole lines go above the display, the rest of a line waits for its
    end."""

    def __init__(self, stream: TextIO, console: Console) -> None:
        self._stream = stream
        self._console = console
        self._rest = ""
        self._pid = os.getpid()

    def write(self, text: str) -> int:
        """Show the whole lines."""
        *lines, self._rest = (self._rest + text).split("\n")
        show = self._show if os.getpid() == self._pid else self._show_from_child
        for line in lines:
            # What a progress bar overwrote with carriage returns was never meant to stay.
            show(line.rstrip("\r").rpartition("\r")[2])
        return len(text)

    def _show(self, line: str) -> None:
        self._console.print(Text.from_ansi(line), soft_wrap=True)

    def _show_from_child(self, line: str) -> None:
        # A forked process cannot redraw the display: it wipes it and leaves room, where the parent draws it again.
        self._stream.write(f"{WIPE}{line}" + "\n" * HEIGHT)
        self._stream.flush()

    def flush(self) -> None:
        """Flush the stream behind. An unfinished line goes on waiting: the display would tear it."""
        self._stream.flush()

    def end(self) -> None:
        """Write what is left of an unfinished line."""
        if self._rest:
            self.write("\n")

    def isatty(self) -> bool:
        """As the stream behind."""
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - it is read-only, as here
        """As the stream behind."""
        return self._stream.encoding

    def fileno(self) -> int:
        """As the stream behind; what is written there directly is not kept out of the display."""
        return self._stream.fileno()

    @property
    def buffer(self) -> Any:
        """As the stream behind; bytes written there are not kept out of the display."""
        return self._stream.buffer


class LiveProgress(Progress):
    """The display; it holds standard output and error from ``start`` to ``close``."""

    def __init__(self, title: str, total: int, *, console: Console | None = None) -> None:
        super().__init__(title, total)
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._live: Live | None = None
        self._metrics: Mapping[str, float] = {}
        self._parts: Mapping[str, float] = {}
        self._stage = ""
        self._drawn_s = 0.0
        self._started_s = time.monotonic()
        self._real = (sys.stdout, sys.stderr)
        self._above: tuple[Above, ...] = ()
        self._hook = sys.breakpointhook

    def start(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put the display up."""
        super().start(rows)
        self._resume()

    def _resume(self) -> None:
        live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
        )
        live.start()
        self._live = live
        # A killed process cannot bring the cursor back, so it is never hidden.
        self._console.show_cursor(True)
        self._real, self._hook = (sys.stdout, sys.stderr), sys.breakpointhook
        self._above = tuple(Above(stream, self._console) for stream in self._real)
        sys.stdout, sys.stderr = self._above
        _redirect(dict(zip(self._real, self._above, strict=True)))
        sys.breakpointhook = self._break
        self._redraw()

    def close(self) -> None:
        """Take the display away and give the streams back."""
        if self._live is None:
            return
        for above in self._above:
            above.end()
        self._live.stop()
        self._live = None
        sys.stdout, sys.stderr = self._real
        _redirect(dict(zip(self._above, self._real, strict=True)))
        sys.breakpointhook = self._hook

    def _break(self, *args: Any, **kwargs: Any) -> Any:
        self.close()
        if self._hook is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ:
            return pdb.Pdb().set_trace(sys._getframe(1))
        return self._hook(*args, **kwargs)

    def draw(self, metrics: Mapping[str, float], parts: Mapping[str, float]) -> None:
        """Redraw after an iteration. A display that a breakpoint put away comes back here."""
        self._metrics, self._parts, self._stage = metrics, parts, ""
        if self._live is None:
            self._resume()
        self._redraw()

    def stage(self, path: str) -> None:
        """Redraw where a stage of the iteration begins."""
        path = short(path)
        if self._live is None or "/" in path:
            return
        self._stage = path
        if time.monotonic() - self._drawn_s > REDRAW_S:
            self._redraw()

    def print(self, thing: RenderableType) -> None:
        """Print it above the display."""
        self._console.print(thing, markup=False, highlight=False, soft_wrap=isinstance(thing, str))

    def _redraw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._drawn_s = time.monotonic()

    def _picture(self) -> RenderableType:
        return Group(self._bar_line(), _joined(self._value_texts()), _joined(self._part_texts()))

    def _bar_line(self) -> Table:
        course = self.course
        line = Table.grid(padding=(0, 1))
        left = f", {clock(course.left_s)} left" if course.left_s else ""
        count, times = f"{course.done}/{course.total}", clock(time.monotonic() - self._started_s)
        bar = max(10, self._console.width // 4)
        # On a narrow terminal the count matters more than the time left, and that more than the whole name.
        room = self._console.width - bar - len(count) - len(times) - 3
        times, room = (times + left, room - len(left)) if room - len(left) >= MIN_TITLE else (times, room)
        title = Text(self.title, style="bold")
        title.truncate(max(MIN_TITLE, room), overflow="ellipsis")
        for overflow in ("ellipsis", "crop", "crop", "crop"):
            line.add_column(no_wrap=True, overflow=overflow)
        line.add_row(
            title,
            ProgressBar(total=course.total, completed=course.done, width=bar),
            Text(count),
            Text(times, style="dim"),
        )
        return line

    def _value_texts(self) -> Iterator[Text]:
        course = self.course
        if course.rewards:
            value = Text.assemble(("reward ", "dim"), (figure(course.rewards[-1]), "bold green"))
            yield value.append(f" {sparkline(course.rewards)}", style="green")
        for headline in (SUCCESS, HELD_OUT, KL, *SPEEDS):
            if headline.label in course.last:
                yield Text.assemble((f"{headline.label} ", "dim"), figure(course.last[headline.label]))

    def _part_texts(self) -> Iterator[Text]:
        whole = sum(self._parts.values())
        largest = sorted(self._parts.items(), key=lambda part: -part[1])[: len(COLOURS)]
        for (name, seconds), colour in zip(largest, COLOURS, strict=False):
            if whole and seconds / whole >= 0.005:
                share = seconds / whole
                yield Text.assemble(("█" * max(1, round(share * 20)), colour), f" {name} {share:.0%}")
        if self._stage:
            yield Text(f"now {self._stage}", style="dim")


def _joined(texts: Iterator[Text]) -> Text:
    joined = Text("  ").join(list(texts))
    joined.no_wrap, joined.overflow = True, "ellipsis"
    return joined


def _redirect(streams: Mapping[Any, Any]) -> None:
    """Point log handlers that hold one of ``streams`` to what stands in for it."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for logger in loggers:
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, logging.StreamHandler) and handler.stream in streams:
                handler.setStream(streams[handler.stream])
