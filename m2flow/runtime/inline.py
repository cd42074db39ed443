# SPDX-License-Identifier: Apache-2.0
"""The runtime of one process: calls happen one after another, here.

Breakpoints, ``print`` and tracebacks work as in any script, because nothing stands between the loop and a role's
method.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from m2flow.errors import FlowError
from m2flow.runtime import saved
from m2flow.runtime.calls import gives_items
from m2flow.runtime.context import Context
from m2flow.runtime.placement import StageConfig


class Inline:
    """Hosts roles in this process."""

    def __init__(self) -> None:
        self.roles: dict[str, Any] = {}
        self.plan: None = None
        """There is nothing to plan."""

    def add(self, name: str, role: Any) -> None:
        """Host ``role`` under ``name``.

        Raises:
            FlowError: it has only one of ``state`` and ``load_state``.
        """
        require_both_halves(name, role)
        self.roles[name] = role

    def pin(self, role: str, stage: StageConfig) -> None:
        """Refused: there is one process only.

        Raises:
            FlowError: always.
        """
        raise FlowError(
            f"cannot pin '{role}' to {stage.slots}: the runtime 'inline' has one process; use --runtime ray"
        )

    def start(self, context: Context) -> None:
        """Nothing has to be started."""

    def wait(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Close the roles that can be closed."""
        for role in self.roles.values():
            if defines(role, "close"):
                role.close()

    def call(
        self, name: str, method: str, *, args: Sequence[Any], kwargs: Mapping[str, Any], context: Context
    ) -> list[Any]:
        """Run one method to its end and return its items: all of a generator's, else the one value it returned."""
        role = self.roles[name]
        if defines(role, "context"):
            role.context = context
        with context.span(f"{name}.{method}"):
            result = getattr(role, method)(*args, **kwargs)
            return list(result) if gives_items(getattr(type(role), method)) else [result]

    def metrics(self) -> dict[str, float]:
        """What roles with a method ``metrics`` counted since the last call; counts of one name add up."""
        found: dict[str, float] = {}
        for role in self.roles.values():
            counted = role.metrics() if defines(role, "metrics") else {}
            for name, count in counted.items():
                found[name] = found.get(name, 0.0) + count
        return found

    def state(self) -> dict[str, Any]:
        """The state of every role that has one, by name."""
        return {name: role.state() for name, role in self.roles.items() if defines(role, "state")}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Give each role its state back.

        Raises:
            CheckpointError: the roles with state are not those that were saved.
        """
        own = {name for name, role in self.roles.items() if defines(role, "state")}
        saved.require_same_roles(own, state)
        for name in sorted(own):
            self.roles[name].load_state(saved.whole(state[name]))


def defines(role: Any, name: str) -> bool:
    """Whether the role's class, or one it derives from, has a member ``name``."""
    return any(name in vars(kind) for kind in type(role).__mro__)


def require_both_halves(name: str, role: Any) -> None:
    """A role can be saved and restored, or neither.

    Raises:
        FlowError: it has only one of ``state`` and ``load_state``.
    """
    halves = [method for method in ("state", "load_state") if defines(role, method)]
    if len(halves) == 1:
        raise FlowError(f"role '{name}' has {halves[0]} alone: give it state and load_state, or neither")
