# SPDX-License-Identifier: Apache-2.0
"""A call of a role's method as it travels to the slots that run it, and how several slots share it."""

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_origin

F = TypeVar("F", bound=Callable[..., Any])

Mode = Literal["share", "first", "everywhere", "each"]
"""How the slots of a role run one call.

- ``share``: each item of the stream it reads is taken by one slot. So run methods that yield items (``generate``,
  ``score``).
- ``first``: one slot runs it, with all items. So runs every other method.
- ``everywhere``: every slot runs it, with all items; the first one's result counts. So run methods marked with
  ``everywhere``.
- ``each``: every slot runs it, and every result counts. So the run itself asks for metrics and state.
"""

_EVERYWHERE = "_m2flow_everywhere"


def everywhere(method: F) -> F:
    """Marks a method that all slots of its role run together, each with every item; the first one's result counts.

    So work the methods of ranks that exchange among themselves (a learner's ``update``), and those that every copy of a
    role must see (a rollout's ``load_weights``).
    """
    setattr(method, _EVERYWHERE, True)
    return method


def mode_of(role: Any, method: str) -> Mode:
    """How several slots share ``role.method``."""
    function = getattr(type(role), method)
    if getattr(function, _EVERYWHERE, False):
        return "everywhere"
    return "share" if gives_items(function) else "first"


def gives_items(function: Callable[..., Any]) -> bool:
    """Whether the items that a method yields are its results: it is a generator, or said to return an iterator."""
    returned = inspect.signature(function).return_annotation
    is_iterator = get_origin(returned) in (Iterator, Generator)
    return is_iterator or inspect.isgeneratorfunction(inspect.unwrap(function))


@dataclass(frozen=True, kw_only=True)
class StreamRef:
    """Stands for a stream among a call's arguments."""

    number: int
    """The hub's."""
    origin: str
    can_grow: bool
    chunk: int
    """How many items a slot takes at a time."""


@dataclass(frozen=True, kw_only=True)
class ItemRef:
    """Stands for the only item of a stream."""

    stream: StreamRef


@dataclass(frozen=True, kw_only=True)
class RoleRef:
    """Stands for a role among a call's arguments."""

    name: str
    here: tuple[int, ...]
    """Slots that are given the role itself, which they host."""
    snapshot: ItemRef | None
    """What the role's ``snapshot`` returned, for all other slots."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One method call. Slots that share a role run its calls in the order of ``number``."""

    number: int
    role: str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode
    output: int
    """Number of the stream that its results go to."""
    slots: tuple[int, ...]
    seed: int
    iteration: int
    num_iterations: int
