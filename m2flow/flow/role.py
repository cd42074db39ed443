# SPDX-License-Identifier: Apache-2.0
"""A role as the loop sees it: the methods of a logical part, wherever it runs."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from m2flow.errors import FlowError
from m2flow.flow.stream import Stream

Call = Callable[..., list[Any]]
"""``Run._call``: role and method by position, its arguments as ``args`` and ``kwargs``."""


class Role:
    """Stands in for an object that was given to ``run.role``: calling a method issues it and returns a ``Stream``."""

    def __init__(self, name: str, target: Any, *, call: Call) -> None:
        self._name = name
        self._target = target
        self._call = call

    def __getattr__(self, method: str) -> Callable[..., Stream[Any]]:
        kind = type(self._target)
        known = [key for key in dir(kind) if not key.startswith("_") and callable(getattr(kind, key))]
        if method in known:
            return partial(self._issue, method)
        if method.startswith("_"):
            raise AttributeError(method)
        close = difflib.get_close_matches(method, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"it has: {', '.join(known)}"
        raise FlowError(f"role '{self._name}' ({kind.__name__}) has no method '{method}': {hint}")

    def __repr__(self) -> str:
        return f"<Role {self._name}: {type(self._target).__name__}>"

    def _issue(self, method: str, /, *args: Any, **kwargs: Any) -> Stream[Any]:
        given = {"args": [_unwrap(a) for a in args], "kwargs": {k: _unwrap(v) for k, v in kwargs.items()}}
        items = self._call(self._name, method, **given)
        growing = [a for a in (*args, *kwargs.values()) if isinstance(a, Stream) and a.can_grow]

        def refill(num_items: int) -> Stream[Any]:
            return self._refill(method, args, kwargs=kwargs, num_items=num_items)

        return Stream(items, origin=f"{self._name}.{method}", refill=refill if len(growing) == 1 else None)

    def _refill(self, method: str, args: Sequence[Any], *, kwargs: Mapping[str, Any], num_items: int) -> Stream[Any]:
        def grown(value: Any) -> Any:
            return value.more(num_items) if isinstance(value, Stream) and value.can_grow else value

        return self._issue(method, *[grown(a) for a in args], **{k: grown(v) for k, v in kwargs.items()})


def _unwrap(value: Any) -> Any:
    """Roles reach other roles as themselves, streams as streams."""
    return value._target if isinstance(value, Role) else value
