# SPDX-License-Identifier: Apache-2.0
"""A run: roles, iterations, and everything that is done for them between two iterations."""

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import numpy as np
from pydantic import Field

from m2flow.checkpoint import rng
from m2flow.checkpoint.store import Store
from m2flow.config import Config, counted
from m2flow.data.films import Film
from m2flow.data.samples import Group
from m2flow.engines.base import SamplingConfig
from m2flow.errors import ConfigError, FlowError, M2flowError
from m2flow.flow.folder import RunFolder, locate
from m2flow.flow.role import Role
from m2flow.flow.signals import Signals, Stopped
from m2flow.flow.stream import Stream
from m2flow.observe.recorder import ObserveConfig, Recorder
from m2flow.registry import EnvConfig, TrainerConfig
from m2flow.runtime import placement
from m2flow.runtime.context import Context
from m2flow.runtime.inline import Inline

if TYPE_CHECKING:
    from m2flow.runtime.distributed import Distributed

R = TypeVar("R")
T = TypeVar("T", covariant=True)


class CheckpointConfig(Config):
    """When the run's state is saved."""

    every: int = Field(default=20, ge=0)
    """Iterations between two checkpoints; 0 saves only at the end."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay on disk."""


class RuntimeConfig(Config):
    """What runs the roles, and where."""

    headline = "kind"

    kind: Literal["inline", "ray"] = "inline"
    """inline: this process. ray: slots, on this machine or a cluster."""
    slots: int | None = Field(default=None, ge=1)
    """ray: slots on each machine; left out, one for each GPU, or one of all cores."""
    address: str | None = None
    """ray: of a running cluster (``auto``, or host:port); left out, this machine alone."""
    pin: tuple[str, ...] = ()
    """ray: what is set by hand of where roles run, as role=slots or role.option=value: rollout=0,1 rollout.chunk=4."""

    def problems(self) -> list[str]:
        """Options of the other kind, and a missing package."""
        given = [name for name in ("slots", "address", "pin") if getattr(self, name)]
        if self.kind == "inline" and given:
            return [f"'{given[0]}' is an option of the runtime 'ray': choose it, or leave the option out"]
        if wrong := placement.problems(self.pin):
            return wrong
        if self.kind == "ray" and importlib.util.find_spec("ray") is None:
            return ["the runtime 'ray' needs the package 'ray': pip install 'm2flow[ray]'"]
        return []


class RunConfig(Config):
    """Settings that every run has; a script's Config adds its own."""

    iterations: int = Field(default=100, ge=1)
    """How many iterations to run in all, those before a resume included."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds sampling, data order and initialisation."""
    run_dir: Path | None = None
    """Folder of the run; left out, runs/<script>-<number>."""
    resume: Literal["never", "auto"] = "never"
    """auto: go on from the newest checkpoint of the run's folder, where there is one."""
    runtime: RuntimeConfig = RuntimeConfig()
    """What runs the roles, and where."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the run's state is saved."""
    observe: ObserveConfig = ObserveConfig()
    """What is shown and logged."""


class TextRunConfig(RunConfig):
    """Settings of a run on prompts. What does not fit together is found before anything is loaded."""

    prompts_per_iteration: int = Field(default=32, ge=1)
    """Prompts in one iteration: each gives one group of samples."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Samples of each prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """How responses are drawn."""
    trainer: TrainerConfig = "local"
    """How the weights are updated."""

    def problems(self) -> list[str]:
        """A batch that the trainer cannot cut."""
        own = type(self.trainer).owner.batch_problems(
            self.trainer, num_groups=self.prompts_per_iteration, longest_response=self.sampling.max_new_tokens
        )
        return [*super().problems(), *own]


class ControlRunConfig(RunConfig):
    """Settings of a run in environments. What does not fit together is found before anything is loaded."""

    env: EnvConfig = "toy"
    """What is acted in."""
    num_rows: int = Field(default=8, ge=1)
    """Copies of it."""
    steps: int = Field(default=256, ge=1)
    """Ticks of each copy in one iteration."""
    trainer: TrainerConfig = "local"
    """How the weights are updated."""

    def problems(self) -> list[str]:
        """A batch that the trainer cannot cut."""
        own = type(self.trainer).owner.batch_problems(
            self.trainer, num_groups=self.num_rows * self.steps, longest_response=1
        )
        return [*super().problems(), *own]


class Source(Protocol[T]):
    """What ``run.iterations`` draws from: endless, and resumable at any item."""

    def take(self, num_items: int, /) -> Sequence[T]:
        """The next items."""
        ...

    def state(self) -> dict[str, Any]:
        """The position."""
        ...

    def load_state(self, state: dict[str, Any], /) -> None:
        """Go to a saved position."""
        ...


class Run:
    """A training run in a folder of its own; use it as a context manager.

    ``role`` registers the parts, ``iterations`` is the loop: between two iterations the run logs, saves and shows.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.folder = RunFolder(locate(config))
        self.iteration = 0
        """Number of the current iteration, from 0."""
        self._runtime: Inline | Distributed = Inline()
        self._signals = Signals(self.path, quiet=config.observe.quiet)
        self._metrics: dict[str, float] = {}
        self._pending: list[tuple[Stream[Mapping[str, float]], str]] = []
        """What was logged before it was there."""
        self._made: list[Iterable[Any]] = []
        """What the calls of this iteration returned."""
        self._films: list[tuple[Film | Stream[Film], str]] = []
        self._recorder: Recorder | None = None
        self._store: Store | None = None

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    def __enter__(self) -> "Run":
        self.folder.open()
        try:
            self._start()
        except BaseException:
            self.folder.close()
            raise
        return self

    def _start(self) -> None:
        self._store = Store(self.path / "checkpoints", keep=self.config.checkpoint.keep)
        begun = self.folder.holds_results()
        if begun and self.config.resume == "never":
            raise ConfigError(
                f"{self.path} already holds a run: resume it with --resume auto, or give another --run-dir"
            )
        if begun:
            self.folder.require_same(self.config)
        self.folder.write_config(self.config)
        self._recorder = Recorder(
            self.path, config=self.config.observe, total_iterations=self.config.iterations, title=self.path.name
        )
        rng.seed(self.config.seed)
        if self.config.runtime.kind == "ray":
            self._runtime = _distributed(self.config.runtime, self._recorder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store, recorder = self._opened()
        failed: list[BaseException] = [] if error is None else [error]
        for close in (self._signals.close, self._runtime.close, store.wait, recorder.close, self.folder.close):
            try:
                close()
            except M2flowError as another:
                failed.append(another)
        # What went wrong first is what the user is to mend; the rest often follows from it.
        for another in failed[1:]:
            failed[0].add_note(str(another))
        if failed and error is None:
            raise failed[0]

    def _opened(self) -> tuple[Store, Recorder]:
        if self._store is None or self._recorder is None:
            raise FlowError("the run is not open: write `with Run(config) as run:` and use it inside")
        return self._store, self._recorder

    def role(self, target: R, name: str | None = None) -> R:
        """Register a part of the flow; calls on the result are issued by the run and return streams.

        Any object serves. Its methods ``state`` and ``load_state``, where it has them, make it part of checkpoints,
        and an
        attribute ``context`` is set before each call. ``name`` is its class's, in lower case, unless given.

        Raises:
            FlowError: the name is taken, or the loop has begun.
        """
        self._opened()
        name = name or type(target).__name__.lower()
        if name in self._runtime.roles:
            raise FlowError(f"there is a role '{name}' already: give this one another, run.role(..., name='...')")
        self._runtime.add(name, target)
        return cast(R, Role(name, target, call=self._call))

    def pin(self, role: str, **options: Any) -> None:
        """Set by hand where a role runs: ``run.pin("rollout", slots=(0, 1), chunk=4)``; see ``StageConfig``.

        Raises:
            FlowError: the first call was issued already, or the runtime has one slot only.
            ConfigError: no such option, or a wrong value.
        """
        self._opened()
        self._runtime.pin(role, placement.StageConfig(**options))

    def _call(self, name: str, method: str, *, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        is_first = self._runtime.plan is None
        items = self._runtime.call(name, method, args=args, kwargs=kwargs, context=self._context())
        if is_first and self._runtime.plan is not None:
            self._runtime.plan.save(self.path / "plan.json")
        self._made.append(items)
        return items

    def _context(self) -> Context:
        _, recorder = self._opened()
        return Context(
            seed=self.config.seed,
            iteration=self.iteration,
            num_iterations=self.config.iterations,
            span=recorder.span,
        )

    def iterations(self, source: Source[Any] | None = None, size: int = 1) -> Iterator[Stream[Any]]:
        """The loop: each turn gives a stream of the next ``size`` items of ``source`` (an empty one without a source).

        What lies between two turns is one iteration: measured, logged and, every so often, saved. On Ctrl-C or SIGTERM
        the iteration is ended and saved first; the signal a second time stops at once.

        Raises:
            Stopped: there was such a signal (a KeyboardInterrupt).
        """
        store, recorder = self._opened()
        self._resume(source, store)
        recorder.resume_at(self.iteration)
        self._signals.listen()
        while self.iteration < self.config.iterations:
            with recorder.span("iteration"):
                yield self._draw(source, size)
                self._runtime.wait()
            self._finish_iteration(source, store, recorder=recorder)

    def _draw(self, source: Source[Any] | None, size: int) -> Stream[Any]:
        if source is None:
            return Stream((), origin="run.iterations")
        return Stream(
            source.take(size), origin="run.iterations", refill=lambda num_items: self._draw(source, num_items)
        )

    def _resume(self, source: Source[Any] | None, store: Store) -> None:
        if self.config.resume != "auto" or not store.steps():
            return
        self._runtime.start(self._context())
        state = store.load(None)
        self._runtime.load_state(state["roles"])
        if source is not None:
            source.load_state(state["source"])
        rng.restore(state["rng"])
        self.iteration = state["iteration"]

    def _finish_iteration(self, source: Source[Any] | None, store: Store, *, recorder: Recorder) -> None:
        for stream, under in self._pending:
            self._add(stream.get(), under)
        for film, name in self._films:
            made: Any = film.get() if isinstance(film, Stream) else film
            recorder.film(self.iteration, name, mp4=made.mp4)
        self.log(self._runtime.metrics())
        recorder.log(self.iteration, self._metrics)
        recorder.samples(self.iteration, _rows(self._made))
        self._metrics, self._pending, self._made, self._films = {}, [], [], []
        self.iteration += 1
        every, stopping = self.config.checkpoint.every, self._signals.caught
        ended = self.iteration == self.config.iterations
        if ended or stopping or (every and self.iteration % every == 0):
            with recorder.span("checkpoint"):
                store.save(self.iteration, self._state(source))
        if stopping and not ended:
            store.wait()
            raise Stopped(f"saved after {counted(self.iteration, 'iteration')}", number=stopping, folder=self.path)

    def _state(self, source: Source[Any] | None) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "roles": self._runtime.state(),
            "source": source.state() if source is not None else {},
            "rng": rng.capture(),
        }

    def due(self, every: int) -> bool:
        """Whether something done ``every`` so many iterations is due now; also in the first and the last. 0: never."""
        return every > 0 and (self.iteration % every == 0 or self.iteration == self.config.iterations - 1)

    def log(self, metrics: Mapping[str, float] | Stream[Mapping[str, float]], under: str = "") -> None:
        """Add numbers to this iteration's line; ``under`` stands before each name (``held_out`` gives held_out/mean).

        Raises:
            FlowError: a value is no number, or the name was logged in this iteration already.
        """
        self._opened()
        if isinstance(metrics, Stream) and not metrics.is_complete:
            self._pending.append((metrics, under))
        else:
            self._add(metrics.get() if isinstance(metrics, Stream) else metrics, under)

    def show(self, film: Film | Stream[Film], name: str = "film") -> None:
        """Keep a film, what ``Rollout.film`` returned, in the run's folder and its report.

        Raises:
            FlowError: the name is no plain word, or was shown in this iteration already.
        """
        self._opened()
        if not re.fullmatch(r"\w+", name):
            raise FlowError(f"a film's name is '{name}', expected letters, digits and underscores: it names a file")
        if any(name == other for _, other in self._films):
            raise FlowError(f"film '{name}' was shown twice in iteration {self.iteration}: give one another name")
        self._films.append((film, name))

    def _add(self, values: Mapping[str, float], under: str) -> None:
        for key, value in values.items():
            name = f"{under}/{key.rpartition('/')[2]}" if under else key
            if not isinstance(value, int | float | np.number):
                raise FlowError(f"metric '{name}' is {value!r}, expected a number")
            if name in self._metrics:
                raise FlowError(
                    f"metric '{name}' was logged twice in iteration {self.iteration}: log one under another name"
                )
            self._metrics[name] = float(value)


def _distributed(config: RuntimeConfig, recorder: Recorder) -> "Distributed":
    from m2flow.runtime.distributed import Distributed
    from m2flow.runtime.ray import RayHosts

    hosts = RayHosts(address=config.address, num_slots=config.slots)
    return Distributed(hosts, pins=placement.pins(config.pin), make_stream=Stream, spans=recorder.add_spans)


def _rows(made: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
    """The samples that were scored last."""
    first = [(next(iter(items), None), items) for items in made]
    scored = [
        items for group, items in first if isinstance(group, Group) and group.samples and group.samples[0].rewards
    ]
    return [
        {
            "prompt": group.prompt.text if group.prompt.text is not None else group.prompt.messages,
            "completion": sample.text,
            "reward": sample.reward,
            "rewards": sample.rewards,
            "tokens": len(sample.token_ids),
            "finish_reason": sample.finish_reason,
        }
        for group in (scored[-1] if scored else ())
        for sample in group.samples
    ]
