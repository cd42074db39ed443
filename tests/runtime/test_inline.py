# SPDX-License-Identifier: Apache-2.0
"""The runtime of one process."""

from contextlib import nullcontext
from typing import Any

import pytest

from m2flow.errors import CheckpointError, FlowError
from m2flow.runtime.context import Context
from m2flow.runtime.inline import Inline


class Counter:
    """A role with state and context."""

    context: Context | None = None

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int | None:
        self.count += 1
        return self.context.iteration if self.context is not None else None

    def metrics(self) -> dict[str, float]:
        return {"counter/count": float(self.count)}

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Derived(Counter):
    """All of it is inherited."""


def call(runtime: Inline, name: str) -> Any:
    context = Context(seed=0, iteration=5, num_iterations=9, span=lambda name: nullcontext())
    return runtime.call(name, "add", args=(), kwargs={}, context=context)


def test_what_a_role_inherits_counts_like_its_own():
    runtime, role = Inline(), Derived()
    runtime.add("counter", role)
    assert call(runtime, "counter") == [5]
    assert runtime.state() == {"counter": {"count": 1}} and runtime.metrics() == {"counter/count": 1.0}
    runtime.load_state({"counter": {"count": 7}})
    assert role.count == 7


def test_a_role_with_half_a_state_is_refused():
    class Half:
        def state(self) -> dict[str, Any]:
            return {}

    with pytest.raises(FlowError, match="role 'half' has state alone"):
        Inline().add("half", Half())


@pytest.mark.parametrize("saved", [{}, {"counter": {"count": 1}, "critic": {}}, {"other": {"count": 1}}])
def test_a_checkpoint_of_another_flow_is_refused(saved: dict[str, Any]):
    runtime = Inline()
    runtime.add("counter", Counter())
    with pytest.raises(CheckpointError, match=r"this flow has \['counter'\]"):
        runtime.load_state(saved)
