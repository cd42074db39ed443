# SPDX-License-Identifier: Apache-2.0
"""A plain function as a reward: which arguments it wants, how it is called, and what it may return."""

import asyncio
import bdb
import functools
import inspect
import math
import numbers
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from m2flow.data.samples import Group, Sample
from m2flow.errors import RewardError

GIVEN = ("completion", "prompt", "sample", "group")
"""Arguments that every function may ask for; all others are columns of the data set."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Scorer:
    """One function of the user's, sync or async.

    Raises:
        RewardError: on construction: it cannot be called with keyword arguments.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float | None = None) -> None:
        self.function = function
        self.timeout_s = timeout_s
        self.name = _name(function)
        self.is_async = _is_async(function)
        parameters = _signature(function, self.name).parameters.values()
        self.required = {p.name for p in parameters if p.kind in _BY_NAME and p.default is p.empty}
        self.optional = {p.name for p in parameters if p.kind in _BY_NAME and p.default is not p.empty}
        self.takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if any(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in parameters):
            raise RewardError(
                f"reward '{self.name}' has positional-only parameters: it is called by name, so drop the '/'"
            )

    def check(self, columns: Mapping[str, Any], where: str) -> None:
        """Whether every parameter has something to be given.

        Raises:
            RewardError: says which one has not, and which columns there are.
        """
        missing = sorted(self.required - {*GIVEN, *columns})
        if missing:
            raise RewardError(
                f"reward '{self.name}' asks for {', '.join(map(repr, missing))}, which {where} does not have: "
                f"its columns are {', '.join(columns) or '(none)'}; besides them there are {', '.join(GIVEN)}"
            )

    def arguments(self, sample: Sample, group: Group) -> dict[str, Any]:
        """What the function is called with. A column that is called like one of ``GIVEN`` stays out of sight."""
        prompt = group.prompt
        given = {
            **prompt.columns,
            "completion": sample.text,
            "prompt": prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages or ()],
            "sample": sample,
            "group": group,
        }
        wanted = self.required | self.optional
        return given if self.takes_all else {name: value for name, value in given.items() if name in wanted}

    def call(self, sample: Sample, group: Group) -> float | None:
        """The reward of one sample.

        Raises:
            RewardError: the function raised (the cause), or returned what is no reward.
        """
        with _at_most(self.timeout_s), self._blame(sample, group):
            value = self.function(**self.arguments(sample, group))
        return self._checked(value, sample=sample, group=group)

    async def call_async(self, sample: Sample, group: Group) -> float | None:
        """``call`` of an async function."""
        with self._blame(sample, group):
            value = await asyncio.wait_for(self.function(**self.arguments(sample, group)), self.timeout_s)
        return self._checked(value, sample=sample, group=group)

    @contextmanager
    def _blame(self, sample: Sample, group: Group) -> Iterator[None]:
        """The boundary to the user's code: what it raises becomes a RewardError that says where."""
        try:
            yield
        except bdb.BdbQuit:
            raise
        except Exception as error:
            kind = type(error).__name__
            said = str(error) or ("it took too long" if isinstance(error, TimeoutError) else "(no message)")
            raise RewardError(f"reward '{self.name}' raised {kind} on {where(sample, group)}: {said}") from error

    def _checked(self, value: Any, *, sample: Sample, group: Group) -> float | None:
        if value is None:
            return None
        if (reward := _as_float(value)) is not None:
            return reward
        if inspect.iscoroutine(value):
            value.close()
        raise RewardError(
            f"reward '{self.name}' returned {_shown(value)} ({type(value).__name__}) for {where(sample, group)}, "
            "expected a finite number, a bool, or None where it does not apply"
        )


@contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError in what runs longer, by an alarm of the system: only a process's main thread hears it.

    Raises:
        RewardError: there is a limit, and this is another thread.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise RewardError("timeout_s of a sync reward works in the main thread only: make the function async")
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _as_float(value: Any) -> float | None:
    """``value`` as a finite float, where it is one."""
    if not isinstance(value, numbers.Real | np.bool_):
        return None
    try:
        reward = float(value)
    except OverflowError:
        return None
    return reward if math.isfinite(reward) else None


def _shown(value: Any) -> str:
    """``value`` in at most a line or two; Python does not write out integers of any length."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def where(sample: Sample, group: Group) -> str:
    """Which sample, for messages."""
    return f"sample {sample.index} of prompt '{group.prompt.id}'"


def _signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        raise RewardError(
            f"reward '{name}' does not say which arguments it takes: wrap it in a function that does"
        ) from None


def _inner(function: Any) -> Any:
    return _inner(function.func) if isinstance(function, functools.partial) else function


def _name(function: Any) -> str:
    function = _inner(function)
    named = inspect.isroutine(function) or inspect.isclass(function)
    return str(function.__name__ if named else type(function).__name__).strip("<>")


def _is_async(function: Any) -> bool:
    function = _inner(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
