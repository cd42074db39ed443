# SPDX-License-Identifier: Apache-2.0
"""What a trainer is: it turns one update's data into optimizer steps, and knows neither algorithm nor kind of policy.

What the data is made of (texts in a packed row, trajectories of a robot) is behind ``Workload``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs
from m2flow.errors import LearnerError
from m2flow.registry import Plugin

T = TypeVar("T")


class Workload(Protocol):
    """One update's data as a model sees it. Samples are numbered as the rows of the ``Batch``."""

    def microbatches(self, rows: Sequence[int], max_tokens: int, *, multiple: int = 1) -> list[list[int]]:
        """``rows`` in parts that are computed one at a time; always the same parts for the same rows.

        Their number is a multiple of ``multiple``, as far as there are that many samples.

        Raises:
            LearnerError: one sample alone exceeds ``max_tokens``.
        """
        ...

    def tokens(self, rows: Sequence[int]) -> int:
        """How much there is to compute for ``rows``."""
        ...

    def outputs(self, rows: Sequence[int], needs: frozenset[str]) -> Outputs:
        """What the model says now about ``rows``, with gradient where enabled; entropies and values where needed."""
        ...

    def logprobs(self, rows: Sequence[int]) -> Float[Tensor, "rows T"]:
        """[len(rows), T] log-probs now; the same bits as those of ``outputs`` for the same rows."""
        ...

    def values(self, rows: Sequence[int]) -> Float[Tensor, "rows T"]:
        """[len(rows), T] values of the critic now."""
        ...

    def reference_logprobs(self, rows: Sequence[int]) -> Float[Tensor, "rows T"]:
        """[len(rows), T] log-probs of the frozen reference policy."""
        ...

    def advantages(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """``algorithm.advantages`` of ``batch``, whose rows may be parts of the samples that advantages are about."""
        ...

    def describe(self, row: int) -> str:
        """Names a sample in an error message."""
        ...


class Objective(Protocol):
    """What draws its data itself, step by step."""

    def loss(self, num: int, *, share: float) -> Loss:
        """Of ``num`` samples drawn anew, times ``share``: their part of all that the step draws."""
        ...

    def stepped(self) -> None:
        """An optimizer step was made, or left out, of the losses so far."""
        ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an update must know beside its data."""

    max_tokens: int
    """The configured longest response."""
    seed: int = 0
    """Orders mini-batches; without effect where there is one."""
    num_updates: int | None = None
    """How many updates the run has in all, where there is a run."""


class Trainer(Plugin, ABC):
    """Optimizes the parameters it is given with what an algorithm says."""

    max_ranks: ClassVar[int | None] = 1
    """How many processes can share the work; ``None``: any number."""

    def __init__(self, config: Any, algorithm: Any) -> None:
        self.config = config
        self.algorithm = algorithm
        """An ``Algorithm``, whose ``update`` this makes, or an ``OffPolicy`` one, whose objective it ``fit``s."""

    def adopt(self, modules: Sequence[Module]) -> None:
        """Take the models over, frozen ones too, before anybody asks for their parameters; once, before ``start``.

        Here they stay as they are. A trainer on many devices divides them, so that their parameters are others then.
        """

    def call(self, module: Module, compute: Callable[[], T]) -> T:
        """``compute()``, which runs an adopted ``module``: its parameters are whole meanwhile."""
        return compute()

    def saved(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What a checkpoint of this process holds of parameters."""
        return dict(tensors)

    def restored(self, saved: Mapping[str, Any], *, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What ``saved`` returned, as it can be copied into ``own``.

        Raises:
            CheckpointError: it belongs to other parameters.
        """
        return saved

    def gathered(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Whole parameters, one after another; all processes of the learner ask together."""
        yield from tensors.items()

    @abstractmethod
    def start(self, parameters: Mapping[str, Mapping[str, Parameter]]) -> None:
        """Take the parameters to train, by part (``policy``, ``critic``) and name. Called once, before all others."""

    @property
    @abstractmethod
    def activation_checkpointing(self) -> bool:
        """Whether the models are to compute activations again in the backward pass."""

    @classmethod
    def batch_problems(cls, config: Any, *, num_groups: int, longest_response: int) -> list[str]:
        """Why a batch cannot be cut as ``config`` says; known before anything is loaded."""
        return []

    def check(self, *, num_groups: int, longest_response: int) -> None:
        """Refuse, before anything is computed, what cannot be run.

        Raises:
            LearnerError: the batch cannot be cut as configured.
        """
        for problem in self.batch_problems(self.config, num_groups=num_groups, longest_response=longest_response):
            raise LearnerError(problem)

    @abstractmethod
    def update(self, work: Workload, batch: Batch, *, settings: Settings) -> dict[str, float]:
        """All optimizer steps of one update; returns metrics.

        Raises:
            LearnerError: a loss or a gradient is not finite.
        """

    @abstractmethod
    def fit(self, objective: Objective, *, num: int, settings: Settings) -> dict[str, float]:
        """As many optimizer steps as ``update`` makes of ``num`` samples, each of as many that ``objective`` draws.

        Raises:
            LearnerError: a loss or a gradient is not finite.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs to go on bit for bit, except for the parameters themselves."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it belongs to other parameters.
        """
