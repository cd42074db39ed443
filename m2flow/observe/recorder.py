# SPDX-License-Identifier: Apache-2.0
"""The record of a run: metrics and samples in files that are always whole, and everything a person sees of it.

In the run's folder: ``metrics.jsonl`` (one line an iteration), ``samples.jsonl``, films in ``videos``, and at the end
``trace.json`` (open it in Perfetto) and ``report.html``.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from m2flow import registry
from m2flow.config import Config
from m2flow.errors import M2flowError
from m2flow.observe import report
from m2flow.observe.headlines import AMOUNTS
from m2flow.observe.line_file import LineFile, replace
from m2flow.observe.loggers.base import Logger, RunInfo
from m2flow.observe.progress import open_progress
from m2flow.observe.sample_table import sample_table
from m2flow.observe.spans import ROOT, Span, Spans, stages

if TYPE_CHECKING:
    LoggerConfig = Any
else:
    LoggerConfig = registry.Choice["loggers"]

RESERVED = ("iteration", "unix_time_s", "elapsed_s")
"""What a line of metrics.jsonl holds besides metrics: its iteration (from 0), the time it was written (seconds since
1970) and how long the run had been running by then (seconds, pauses before a resume not counted)."""
MAX_CHARACTERS = 10_000
"""A longer prompt or completion is cut in samples.jsonl."""


class ObserveConfig(Config):
    """What is shown and logged. metrics.jsonl, samples.jsonl and the report are always written."""

    loggers: tuple[LoggerConfig, ...] = ()
    """Where metrics go besides the run's folder: tensorboard, wandb, trackio."""
    sample_every: int = Field(default=10, ge=0)
    """Iterations between two tables of samples on the screen; 0 shows none."""
    samples_per_iteration: int = Field(default=4, ge=0)
    """How many samples of an iteration are kept in samples.jsonl and shown in the table."""
    quiet: bool = False
    """Print nothing at all."""


class Recorder:
    """Records one run in ``folder``. Logger packages that are missing are found out here, before anything starts.

    Raises:
        ConfigError: a logger's package is not installed.
    """

    def __init__(self, folder: Path, *, config: ObserveConfig, total_iterations: int, title: str) -> None:
        config.check()
        self.folder = folder.resolve()
        self.config = config
        self.total_iterations = total_iterations
        self._metrics = LineFile(self.folder / "metrics.jsonl")
        self._samples = LineFile(self.folder / "samples.jsonl")
        info = RunInfo(folder=self.folder, title=title, settings=report.read_settings(self.folder))
        self._loggers: list[Logger] = [registry.build(choice, info) for choice in config.loggers]
        self._progress = open_progress(title, total_iterations, quiet=config.quiet)
        self._spans = Spans(on_enter=self._progress.stage)
        self._started_s = time.monotonic()
        self._first = 0
        self._closed = False

    def span(self, name: str) -> AbstractContextManager[None]:
        """``with recorder.span("generate"):`` times what is inside, as part of the current iteration.

        Metric ``time/generate_s`` holds the sum. A span inside another gives ``time/outer/inner_s``, one of another
        thread ``time/background/..._s``, one of the run's own thread that lies between two iterations
        ``time/between/..._s`` of the iteration that follows. A span "iteration" around it all is left out of the names.
        """
        return self._spans.open(name)

    def add_spans(self, slot: int, spans: Sequence[Span]) -> None:
        """Spans that another process measured, as part of the current iteration; times as ``time/slot_0/..._s``."""
        self._spans.add(f"slot_{slot}", spans)

    def resume_at(self, iteration: int) -> None:
        """Forget what was recorded of ``iteration`` and later ones: they are about to be done (again).

        Raises:
            M2flowError: a file of the run is damaged, or the disk is full.
        """
        kept = self._metrics.keep_before(iteration)
        self._samples.keep_before(iteration)
        self._first = iteration
        self._started_s = time.monotonic() - (kept[-1]["elapsed_s"] if kept else 0.0)
        for logger in self._loggers:
            logger.resume_at(iteration)
        self._progress.start(kept)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Write one iteration's line. Times are added, and tokens or ticks per second where their number is among them.

        Raises:
            M2flowError: a metric has the name of something that the recorder adds, or the disk is full.
        """
        times = self._spans.take(iteration)
        measured = {**_throughput(metrics, times), **{f"time/{path}_s": s for path, s in times.items()}}
        if taken := [name for name in metrics if name in RESERVED or name in measured]:
            raise M2flowError(f"metric '{taken[0]}' is one that the recorder writes itself: give it another name")
        everything = {**metrics, **measured}
        stamp = {"iteration": iteration, "unix_time_s": round(time.time(), 3), "elapsed_s": round(self._elapsed_s(), 3)}
        self._metrics.append({**stamp, **everything})
        for logger in self._loggers:
            logger.log(iteration, everything)
        self._progress.show(iteration, everything, parts=stages(times))

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def samples(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep some of an iteration's samples, evenly spread over ``rows``, and show them when a table is due.

        Each row has ``prompt`` (text or chat messages), ``completion`` and ``reward``, and may have more columns.

        Raises:
            M2flowError: the disk is full.
        """
        kept = [_readable(row) for row in spread(rows, self.config.samples_per_iteration)]
        for row in kept:
            self._samples.append({"iteration": iteration, **row})
        every = self.config.sample_every
        if not kept or not every or (iteration % every and iteration != self.total_iterations - 1):
            return
        self._progress.print(sample_table(iteration, kept))
        for logger in self._loggers:
            logger.samples(iteration, kept)

    def film(self, iteration: int, name: str, *, mp4: bytes) -> Path:
        """Keep a film as ``videos/<name>-<iteration>.mp4``; the report shows the last ones.

        Raises:
            M2flowError: the disk is full.
        """
        path = self.folder / "videos" / f"{name}-{iteration:06d}.mp4"
        path.parent.mkdir(exist_ok=True)
        replace(path, mp4)
        return path

    def close(self) -> None:
        """End the display, write trace and report, say how it went. A second call does nothing.

        Raises:
            M2flowError: the disk is full.
        """
        if self._closed:
            return
        self._closed = True
        self._progress.close()
        self._metrics.close()
        self._samples.close()
        for logger in self._loggers:
            logger.close()
        self._spans.take(self.total_iterations)
        self._spans.write_trace(self.folder / "trace.json", before=self._first)
        written = report.write(self.folder, total_iterations=self.total_iterations)
        self._progress.finish(written, self._elapsed_s())


def _throughput(metrics: Mapping[str, float], times: Mapping[str, float]) -> dict[str, float]:
    amounts, seconds = {one.label: one.value(metrics) for one in AMOUNTS}, times.get(ROOT, 0.0)
    return {
        f"throughput/{label}_per_s": amount / seconds
        for label, amount in amounts.items()
        if amount is not None and seconds > 0
    }


def spread(rows: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """``number`` of the rows at even distances, so that a few of many groups are seen and not all of one group."""
    number = min(number, len(rows))
    return [rows[index * len(rows) // number] for index in range(number)]


def _readable(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {"prompt": _cut(_prompt_text(row.get("prompt"))), "completion": _cut(str(row.get("completion") or ""))}
    return {**texts, **{key: value for key, value in row.items() if key not in texts}}


def _prompt_text(prompt: Any) -> str:
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _cut(text: str) -> str:
    left_out = len(text) - MAX_CHARACTERS
    return text if left_out <= 0 else f"{text[:MAX_CHARACTERS]} … ({left_out:,} more characters)"
