# SPDX-License-Identifier: Apache-2.0
"""What a role is told about the run it serves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Context:
    """Set as ``role.context`` before each call on roles that declare the attribute."""

    seed: int
    """The run's seed."""
    iteration: int
    """Number of the iteration that the call belongs to, from 0."""
    num_iterations: int
    """How many iterations the run has in all (a learning-rate schedule needs it)."""
    span: Callable[[str], AbstractContextManager[Any]]
    """``with context.span("prefill"):`` adds a part to the run's timeline."""
    slots: tuple[int, ...] = (0,)
    """The slots that run the call, each with a copy of the role."""
    slot: int = 0
    """Which of them this is."""
