# SPDX-License-Identifier: Apache-2.0
"""How far a run is: a live display on a terminal, one plain line an iteration everywhere else.

Neither uses a thread, so that a fork (a pool of reward processes) never copies a lock that is held.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType

from m2flow.observe.headlines import HELD_OUT, KL, REWARD, SECONDS, SPEEDS, SUCCESS, Headline, clock, figure
from m2flow.observe.line_file import number

PLAIN_WIDTH = 120
"""Columns of tables that go to a file or a pipe."""


class Course:
    """What the displays need of the iterations so far."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.rewards: list[float] = []
        self._seconds: deque[float] = deque(maxlen=20)

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Count one iteration."""
        self.done = iteration + 1
        for headline in (REWARD, SUCCESS, HELD_OUT, KL, *SPEEDS, SECONDS):
            if (value := headline.value(metrics)) is not None:
                self.first.setdefault(headline.label, value)
                self.last[headline.label] = value
        if (reward := REWARD.value(metrics)) is not None:
            self.rewards.append(reward)
        self._seconds.append(metrics.get("time/iteration_s", 0.0))

    @property
    def left_s(self) -> float:
        """Seconds to the end at the pace of the last 20 iterations."""
        return sum(self._seconds) / max(len(self._seconds), 1) * max(self.total - self.done, 0)

    def change(self, headline: Headline) -> str:
        """First and last value."""
        if headline.label not in self.last:
            return ""
        return f"{headline.label} {figure(self.first[headline.label])} -> {figure(self.last[headline.label])}"


class Progress(ABC):
    """Base of the displays."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.course = Course(total)

    def start(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Begin, after the iterations that ``rows`` of metrics.jsonl describe."""
        for row in rows:
            metrics = {name: value for name, given in row.items() if (value := number(given)) is not None}
            self.course.add(row["iteration"], metrics)

    def show(self, iteration: int, metrics: Mapping[str, float], *, parts: Mapping[str, float]) -> None:
        """One iteration is done; ``parts`` says how many seconds went where."""
        self.course.add(iteration, metrics)
        self.draw(metrics, parts)

    @abstractmethod
    def draw(self, metrics: Mapping[str, float], parts: Mapping[str, float]) -> None:
        """Show the course after one more iteration."""

    @abstractmethod
    def stage(self, path: str) -> None:
        """A span began."""

    @abstractmethod
    def print(self, thing: RenderableType) -> None:
        """Print something between the iterations."""

    @abstractmethod
    def close(self) -> None:
        """Give the terminal back."""

    def finish(self, report: Path, elapsed_s: float) -> None:
        """Say how it went and where the report is."""
        course = self.course
        ended = "finished" if course.done >= course.total else "stopped"
        changes = [text for headline in (REWARD, SUCCESS, HELD_OUT) if (text := course.change(headline))]
        self.print(
            "  ".join([f"{ended} after {course.done} of {course.total} iterations in {clock(elapsed_s)}", *changes])
        )
        self.print(f"report: {report.as_uri()}")


class SilentProgress(Progress):
    """Shows nothing."""

    def draw(self, metrics: Mapping[str, float], parts: Mapping[str, float]) -> None:
        """Nothing."""

    def stage(self, path: str) -> None:
        """Nothing."""

    def print(self, thing: RenderableType) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainProgress(Progress):
    """One line an iteration, without control codes; columns stand below one another."""

    def __init__(self, title: str, total: int, *, stream: TextIO) -> None:
        super().__init__(title, total)
        self._console = plain_console(stream)

    def start(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Say what begins."""
        super().start(rows)
        done = f", {self.course.done} done before" if self.course.done else ""
        self.print(f"{self.title}: {self.course.total} iterations{done}")

    def draw(self, metrics: Mapping[str, float], parts: Mapping[str, float]) -> None:
        """One line."""
        self.print(plain_line(self.course, metrics, parts=parts))

    def stage(self, path: str) -> None:
        """Nothing: a line an iteration is enough."""

    def print(self, thing: RenderableType) -> None:
        """Print it without markup; a text stays on one line, however long."""
        with self._console.capture() as captured:
            if isinstance(thing, str):
                self._console.out(thing, highlight=False)
            else:
                self._console.print(thing)
        encoding = self._console.encoding
        self._console.file.write(captured.get().encode(encoding, "replace").decode(encoding))
        self._console.file.flush()

    def close(self) -> None:
        """Nothing to give back."""


def plain_line(course: Course, metrics: Mapping[str, float], *, parts: Mapping[str, float]) -> str:
    """``   12/100  reward 0.734  KL 0.0123  2,410 tokens/s  1.9 s  left 2:49  rollout.generate 62% ...``."""
    width = len(str(course.total))
    columns = [f"{course.done:>{width}}/{course.total}"]
    for headline, room in ((REWARD, 8), (SUCCESS, 5), (KL, 8)):
        if headline.label in course.last:
            columns.append(f"{headline.label} {figure(headline.value(metrics)):>{room}}")
    for speed in SPEEDS:
        if speed.label in course.last:
            columns.append(f"{figure(speed.value(metrics)):>7} {speed.label}")
    if SECONDS.label in course.last:
        columns.append(f"{clock(metrics.get('time/iteration_s', 0.0)):>6}  left {clock(course.left_s):>7}")
    if (held_out := HELD_OUT.value(metrics)) is not None:
        columns.append(f"{HELD_OUT.label} {figure(held_out)}")
    return "  ".join([*columns, *shares(parts)[:2]])


def shares(parts: Mapping[str, float]) -> list[str]:
    """``generate 62%``, the largest first."""
    whole = sum(parts.values())
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return [f"{name} {seconds / whole:.0%}" for name, seconds in largest if whole and seconds / whole >= 0.005]


def plain_console(stream: TextIO) -> Console:
    """A console that writes no control codes."""
    width = int(os.environ.get("COLUMNS") or PLAIN_WIDTH)
    return Console(file=stream, force_terminal=False, color_system=None, width=width, highlight=False)


def open_progress(title: str, total: int, *, quiet: bool) -> Progress:
    """The display that fits where standard output goes."""
    if quiet:
        return SilentProgress(title, total)
    draws = os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and "utf" in (sys.stdout.encoding or "").lower()
    if draws and sys.stdout.isatty():
        from m2flow.observe.live import LiveProgress

        return LiveProgress(title, total)
    return PlainProgress(title, total, stream=sys.stdout)
