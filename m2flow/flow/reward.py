# SPDX-License-Identifier: Apache-2.0
"""The role that scores: groups in, the same groups with rewards out."""

import asyncio
import math
import statistics
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from m2flow import registry
from m2flow.config import Config
from m2flow.data.samples import Group, Sample
from m2flow.errors import ConfigError, RewardError
from m2flow.flow.scorer import Scorer, where
from m2flow.rewards.base import Response, RewardFunction

Given = str | Mapping[str, Any] | Config | RewardFunction | Callable[..., Any]
Row = tuple[Sample, Group]


class Reward:
    """Scores samples with one or more functions; a sample's reward is their weighted sum.

    A function is the id of a plug-in (``"math_answer"``), its Config, or any function, sync or async, whose parameters
    are taken by name: ``completion`` (the response's text), ``prompt`` (text, or a list of messages), ``sample``,
    ``group``, and the columns of the data set. It returns a number, a bool, or ``None`` where it does not apply.

    ``weights`` are given in the order of the functions, or by name; 1 each unless given. ``on_error="none"`` turns what
    a plain function raises into "does not apply", and counts it as the metric ``reward/<name>_errors``. At most
    ``concurrency`` calls of async functions run at a time. ``timeout_s`` bounds each call of a plain function, sync or
    async; one that takes longer has raised ``TimeoutError``. (Plug-ins have limits of their own.)

    Raises:
        RewardError: on construction: no function, two of one name, weights that do not fit, or a wrong option.
        ConfigError: an unknown id or option of a plug-in.
    """

    max_slots: int | None = None
    """Any number of slots can share the groups."""

    def __init__(
        self,
        *functions: Given,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        on_error: Literal["raise", "none"] = "raise",
        concurrency: int = 64,
        timeout_s: float | None = None,
    ) -> None:
        if on_error not in ("raise", "none"):
            raise RewardError(f"on_error is {on_error!r}, expected 'raise' or 'none'")
        if concurrency < 1:
            raise RewardError(f"concurrency is {concurrency}, expected at least 1")
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise RewardError(f"timeout_s is {timeout_s}, expected seconds above 0, or None for no limit")
        self.functions: dict[str, RewardFunction | Scorer] = _named([_function(g, timeout_s) for g in functions])
        self.weights = _weights(weights, list(self.functions))
        self.on_error = on_error
        self.concurrency = concurrency
        self._counts: Counter[str] = Counter()
        self._runner: asyncio.Runner | None = None

    def score(self, groups: Iterable[Group]) -> Iterator[Group]:
        """The groups with ``rewards`` and ``reward`` of every sample, in order. The groups given stay as they are.

        Raises:
            RewardError: a function asks for what a prompt does not have, raises, or returns what is no reward.
        """
        for chunk in self._chunks(groups):
            rows = [(sample, group) for group in chunk for sample in group.samples]
            self._check(chunk)
            values = {name: self._score(function, rows) for name, function in self.functions.items()}
            scored = iter([self._scored(row[0], {n: v[i] for n, v in values.items()}) for i, row in enumerate(rows)])
            for group in chunk:
                yield replace(group, samples=[next(scored) for _ in group.samples])

    def summary(self, groups: Iterable[Group]) -> dict[str, float]:
        """Mean reward, the mean of each function, and the number of samples; groups without rewards are scored first.

        Keys: ``reward/mean``, ``reward/std``, ``reward/<name>``, ``reward/samples``, ``reward/samples_without_reward``.
        A mean over no samples is left out.
        """
        samples = [sample for group in self._all_scored(groups) for sample in group.samples]
        totals = sorted(sample.reward for sample in samples if sample.reward is not None)
        out = {
            "reward/samples": float(len(samples)),
            "reward/samples_without_reward": float(len(samples) - len(totals)),
        }
        if totals:
            out |= {"reward/mean": statistics.fmean(totals), "reward/std": statistics.pstdev(totals)}
        for name in self.functions:
            # Sorted, so that the order of arrival does not show in the last digit.
            own = sorted(value for sample in samples if (value := sample.rewards.get(name)) is not None)
            out |= {f"reward/{name}": statistics.fmean(own)} if own else {}
        return out

    def metrics(self) -> dict[str, float]:
        """Counts of what went wrong in scoring since the last call: ``reward/math_answer_timeouts`` and the like."""
        names = [f"{n}_{e}" for n, f in self.functions.items() if isinstance(f, RewardFunction) for e in f.EVENTS]
        if self.on_error == "none":
            names += [f"{n}_errors" for n, f in self.functions.items() if isinstance(f, Scorer)]
        counts, self._counts = self._counts, Counter()
        return {f"reward/{name}": float(counts[name]) for name in [*names, *(counts.keys() - set(names))]}

    def close(self) -> None:
        """End the processes and connections of its functions; scoring again starts new ones."""
        for function in self.functions.values():
            if isinstance(function, RewardFunction):
                function.close()
        if self._runner is not None:
            _outside_loops(self._runner.close)
            self._runner = None

    def _all_scored(self, groups: Iterable[Group]) -> Iterator[Group]:
        for group in groups:
            done = all(sample.rewards.keys() >= self.functions.keys() for sample in group.samples)
            yield from (group,) if done else self.score([group])

    def _chunks(self, groups: Iterable[Group]) -> Iterator[list[Group]]:
        """Groups until they hold as many samples as may be scored at a time."""
        chunk: list[Group] = []
        for group in groups:
            chunk.append(group)
            if sum(len(g.samples) for g in chunk) >= self.concurrency:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    def _check(self, groups: Sequence[Group]) -> None:
        for group in groups:
            place = f"prompt '{group.prompt.id}'"
            for name, function in self.functions.items():
                if isinstance(function, Scorer):
                    function.check(group.prompt.columns, place)
                elif missing := [column for column in function.columns if column not in group.prompt.columns]:
                    raise RewardError(
                        f"reward '{name}' needs column '{missing[0]}', which {place} does not have; its columns are "
                        f"{', '.join(group.prompt.columns) or '(none)'}: map the right one, or name it in the options"
                    )

    def _scored(self, sample: Sample, values: dict[str, float | None]) -> Sample:
        parts = [self.weights[name] * value for name, value in values.items() if value is not None]
        return replace(sample, rewards=values, reward=math.fsum(parts) if parts else None)

    def _score(self, function: RewardFunction | Scorer, rows: Sequence[Row]) -> list[float | None]:
        if isinstance(function, RewardFunction):
            return self._judge(function, rows)
        if function.is_async:
            return self._run(self._gather(function, rows))
        return [self._forgiving(function, row) for row in rows]

    def _judge(self, function: RewardFunction, rows: Sequence[Row]) -> list[float | None]:
        responses = [
            Response(completion=sample.text, columns=group.prompt.columns, where=where(sample, group))
            for sample, group in rows
        ]
        verdicts = function.score(responses)
        if len(verdicts) != len(rows):
            raise RewardError(f"reward '{function.name}' gave {len(verdicts)} verdicts for {len(rows)} responses")
        for verdict, row in zip(verdicts, rows, strict=True):
            if verdict.value is not None and not math.isfinite(verdict.value):
                raise RewardError(
                    f"reward '{function.name}' gave {verdict.value} for {where(*row)}, expected a finite number"
                )
        self._counts.update(f"{function.name}_{verdict.event}" for verdict in verdicts if verdict.event)
        return [verdict.value for verdict in verdicts]

    def _forgiving(self, function: Scorer, row: Row) -> float | None:
        try:
            return function.call(*row)
        except RewardError as error:
            return self._forgive(function, error)

    def _forgive(self, function: Scorer, error: RewardError) -> None:
        """Count an error of the user's code; one about what it returned has no cause, and is never forgiven."""
        if self.on_error == "raise" or error.__cause__ is None:
            raise error
        self._counts[f"{function.name}_errors"] += 1

    async def _gather(self, function: Scorer, rows: Sequence[Row]) -> list[float | None]:
        gate = asyncio.Semaphore(self.concurrency)

        async def one(row: Row) -> float | None:
            async with gate:
                try:
                    return await function.call_async(*row)
                except RewardError as error:
                    return self._forgive(function, error)

        tasks = [asyncio.ensure_future(one(row)) for row in rows]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # After an error the others are not worth waiting for, but must have ended before the loop goes on.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, list[float | None]]) -> list[float | None]:
        if self._runner is None:
            # One loop for all calls: clients that a function keeps (connections) belong to the loop they were made in.
            self._runner = asyncio.Runner()
            weakref.finalize(self, _outside_loops, self._runner.close)
        return _outside_loops(self._runner.run, work)


class MathReward(Reward):
    """``Reward("math_answer")``, with that reward's options as arguments: ``MathReward(extract="first_line")``."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"name": "math_answer", **options})


def _outside_loops(call: Callable[..., Any], *args: Any) -> Any:
    """What ``call`` returns. Inside somebody else's event loop (a notebook's), it gets a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call(*args)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *args).result()


def _function(given: Given, timeout_s: float | None) -> RewardFunction | Scorer:
    if isinstance(given, RewardFunction):
        return given
    if isinstance(given, str | Mapping | Config):
        return registry.build(_config({"name": given} if isinstance(given, str) else given))
    if not callable(given):
        raise RewardError(f"got {given!r} as a reward, expected the id of a reward, its Config, or a function")
    return Scorer(given, timeout_s=timeout_s)


def _config(given: Mapping[str, Any] | Config) -> Config:
    if isinstance(given, Mapping):
        options = dict(given)
        return registry.load("rewards", options.pop("name")).Config(**options)
    try:
        return registry.choose("rewards", given)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _named(functions: Sequence[RewardFunction | Scorer]) -> dict[str, RewardFunction | Scorer]:
    if not functions:
        raise RewardError("a Reward needs at least one function, as in Reward('math_answer') or Reward(my_function)")
    found: dict[str, RewardFunction | Scorer] = {}
    for function in functions:
        if function.name in found:
            raise RewardError(
                f"two rewards are called '{function.name}': rename one, so that their values can be told apart"
            )
        found[function.name] = function
    return found


def _weights(given: Sequence[float] | Mapping[str, float] | None, names: Sequence[str]) -> dict[str, float]:
    if given is None:
        return dict.fromkeys(names, 1.0)
    if isinstance(given, Mapping):
        if unknown := sorted(given.keys() - set(names)):
            raise RewardError(f"weights name '{unknown[0]}', but the rewards are {', '.join(names)}")
        weights = {name: float(given.get(name, 1.0)) for name in names}
    elif len(given) != len(names):
        raise RewardError(f"got {len(given)} weights for {len(names)} rewards ({', '.join(names)}), expected one each")
    else:
        weights = dict(zip(names, map(float, given), strict=True))
    if wrong := [name for name, weight in weights.items() if not math.isfinite(weight)]:
        raise RewardError(f"the weight of reward '{wrong[0]}' is {weights[wrong[0]]}, expected a finite number")
    return weights
