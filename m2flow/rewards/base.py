# SPDX-License-Identifier: Apache-2.0
"""What a reward is that comes as a plug-in: many completions in, one verdict each out.

A function of one's own needs none of this: ``Reward(my_function)`` takes any function of a completion.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from m2flow.registry import Plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One completion to be judged, with the columns of its prompt's row in the data set."""

    completion: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    """Prompt id and sample index, for messages."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``value``: the reward; ``None`` where this one does not apply.

    ``event`` names something that went wrong while judging. It is counted: the metric ``reward/<id>_<event>``.
    """

    value: float | None
    event: str | None = None


class RewardFunction(Plugin, ABC):
    """One reward. It judges a batch at a time, so that it may use a pool of its own."""

    EVENTS: ClassVar[tuple[str, ...]] = ()
    """Every ``Verdict.event`` that may come; each is a metric, 0 where it did not happen."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data set that it needs."""
        return ()

    @abstractmethod
    def score(self, responses: Sequence[Response]) -> list[Verdict]:
        """One verdict for each response, in order.

        Raises:
            RewardError: a column holds what cannot be used.
        """

    def close(self) -> None:
        """Give back what it holds (processes, connections). It may be used again."""
        return
