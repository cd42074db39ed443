# SPDX-License-Identifier: Apache-2.0
"""What an algorithm is: pure functions of tensors between a trainer that names no algorithm and data that has no model.

``S`` is the number of samples (or trajectories), ``T`` the longest response; rows are padded on the right and ``mask``
says which positions count. Masked positions may hold anything, a NaN too: they never reach a result, and a row without
a counted position is as if it were not there.

An ``Algorithm`` learns from what the policy just did, an ``OffPolicy`` one from anything that was ever done.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from m2flow.config import Config
from m2flow.registry import Plugin


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The global batch of one update; the trainer cuts micro-batches from it with ``rows``."""

    mask: Bool[Tensor, "S T"]
    """Positions that are trained on."""
    rewards: Float[Tensor, "S"]
    """Total reward of each sample."""
    group_ids: Int[Tensor, "S"]
    """Samples of one prompt share a number."""
    rollout_logprobs: Float[Tensor, "S T"]
    """Log-probs that the rollout sampled from."""
    truncated: Bool[Tensor, "S"]
    """Cut at a limit, not ended by the policy."""
    bootstraps: Float[Tensor, "S"] | None = None
    """Value of the state that follows the last counted position: 0 where the task itself ended the episode. ``None``:
    0 for all."""
    token_rewards: Float[Tensor, "S T"] | None = None
    """Dense rewards, where there are any besides ``rewards`` (which sits on the last counted position)."""
    old_logprobs: Float[Tensor, "S T"] | None = None
    """The learner's log-probs before the first step of this update."""
    reference_logprobs: Float[Tensor, "S T"] | None = None
    values: Float[Tensor, "S T"] | None = None
    """The critic's values before the first step of this update."""
    advantages: Float[Tensor, "S T"] | None = None
    returns: Float[Tensor, "S T"] | None = None
    weights: Float[Tensor, "S T"] | None = None
    """Factors of the per-token loss (truncated importance sampling), without gradient."""

    def rows(self, index: Int[Tensor, "rows"]) -> "Batch":
        """The samples at ``index``, all fields alike."""
        picked = {k: v[index] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **picked)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Counts over the *global* batch of one optimizer step, by which every micro-batch's sum is divided.

    That is what makes a loss independent of micro-batch size, rank count and padding.
    """

    num_tokens: int
    """Positions with mask 1."""
    num_sequences: int
    """Rows with at least one such position."""
    max_tokens: int
    """The configured longest response, the constant divisor of Dr. GRPO."""

    @classmethod
    def of(cls, mask: Bool[Tensor, "S T"], *, max_tokens: int) -> "Totals":
        """Counts of ``mask``."""
        return cls(num_tokens=int(mask.sum()), num_sequences=int(mask.any(1).sum()), max_tokens=max_tokens)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the model says now about a micro-batch, with gradient."""

    logprobs: Float[Tensor, "S T"]
    entropies: Float[Tensor, "S T"] | None = None
    values: Float[Tensor, "S T"] | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A micro-batch's share of the loss. Shares add up to the global batch's loss, gradients likewise.

    ``sums`` are plain numbers that add up over micro-batches too; each is already divided by the global count, so that
    their sum is the global mean.
    """

    policy: Float[Tensor, ""]
    value: Float[Tensor, ""] | None = None
    sums: dict[str, float] = field(default_factory=dict)


class Algorithm(Plugin, ABC):
    """One reinforcement-learning algorithm: which quantities it needs, its advantages and its loss.

    All methods are pure. ``needs`` may hold ``old_logprobs``, ``reference_logprobs``, ``values`` and ``entropies``;
    a trainer computes what is named there and nothing else.
    """

    needs: frozenset[str]
    loss_only: frozenset[str] = frozenset()
    """Those of ``needs`` that ``advantages`` does not read. Old log-probs that only the loss reads cost no forward pass
    of their own where an update makes a single step: they are the current ones, without gradient."""
    CAPABILITIES: ClassVar[frozenset[str]] = frozenset({"old_logprobs", "reference_logprobs", "values", "entropies"})

    def __init__(self, config: Any) -> None:
        self.config = config

    def keep(self, rewards: Float[Tensor, "n"]) -> bool:
        """Whether a group with these rewards is trained on (dynamic sampling). All are, unless overridden."""
        return True

    @property
    def max_resampling_rounds(self) -> int:
        """How often groups that were not kept may be replaced by new ones. 0: never."""
        return 0

    @property
    def per_sequence(self) -> bool:
        """Whether the loss of a position depends on others of its sample, as a ratio of whole responses does."""
        return False

    @abstractmethod
    def advantages(self, batch: Batch) -> Batch:
        """``batch`` with ``advantages`` (zero where masked), and ``returns``, ``weights``, ``mask`` where they
        change."""

    @abstractmethod
    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """This micro-batch's share of the loss of the global batch that ``totals`` counts."""

    def stop_early(self, sums: dict[str, float]) -> bool:
        """Whether to leave the remaining epochs and mini-batches of this update out (target KL)."""
        return False


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """``B`` ticks out of a memory, and what ``K`` targets say of what followed."""

    rewards: Float[Tensor, "B"]
    dones: Float[Tensor, "B"]
    """1 where the task itself ended the episode, else 0."""
    next_values: Float[Tensor, "K B"]
    """Of actions that the policy would now take in the states that followed."""
    next_logprobs: Float[Tensor, "B"]
    """Of those actions."""


class OffPolicyConfig(Config):
    """Options that all algorithms share that draw from a memory."""

    capacity: int = Field(default=1_000_000, ge=1)
    """Ticks that can be drawn: the last ones."""
    folder: Path | None = None
    """Keeps them in place of main memory and checkpoints. None: those hold them."""
    start_ticks: int = Field(default=4000, ge=1)
    """No step is made of fewer ticks."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Share of the way that targets follow their critics after each step."""
    num_critics: int = Field(default=2, ge=1)
    """How many critics value an action."""
    num_targets: int | None = Field(default=None, ge=1)
    """How many of their targets, drawn anew in each step, are asked. None: all."""
    critic_layer_norm: bool = Field(default=False)
    """Whether critics normalise each layer, which keeps them from extrapolating where data is scarce."""
    policy_every: int = Field(default=1, ge=1)
    """Steps of the critics for each of the policy and the temperature."""
    initial_temperature: float = Field(default=1.0, gt=0)
    """Worth of a nat of entropy at first."""
    learn_temperature: bool = Field(default=True)
    """Whether it follows the entropy."""

    def problems(self) -> list[str]:
        """More targets than critics, or a memory too small to begin."""
        many = self.num_targets is not None and self.num_targets > self.num_critics
        more = f"num_targets is {self.num_targets}, of num_critics={self.num_critics}: lower it or leave it out"
        few = f"capacity is {self.capacity}, fewer than start_ticks={self.start_ticks}: no step would ever be made"
        return super().problems() + [more] * many + [few] * (self.capacity < self.start_ticks)


class OffPolicy(Plugin, ABC):
    """An algorithm that learns from ticks of any age, which are drawn from a memory (``data.replay``).

    Critics value actions; slowly following copies of them are the targets. All methods are pure. ``B`` is the number of
    ticks drawn, ``K`` that of critics, and losses are means over the ticks. Its Config is an ``OffPolicyConfig``.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """Nothing of what an ``Algorithm`` can need."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def targets(self, replayed: Replayed, *, temperature: Float[Tensor, ""]) -> Float[Tensor, "B"]:
        """What critics are to say of the actions taken; ``temperature`` is the worth of a nat of entropy."""

    @abstractmethod
    def critic_loss(self, values: Float[Tensor, "K B"], targets: Float[Tensor, "B"]) -> Float[Tensor, ""]:
        """Of the critics' values of the actions taken."""

    @abstractmethod
    def policy_loss(
        self, values: Float[Tensor, "K B"], logprobs: Float[Tensor, "B"], *, temperature: Float[Tensor, ""]
    ) -> Float[Tensor, ""]:
        """Of actions that the policy would now take, with gradient through them."""

    @abstractmethod
    def temperature_loss(
        self, log_temperature: Float[Tensor, ""], logprobs: Float[Tensor, "B"], *, num_actions: int
    ) -> Float[Tensor, ""]:
        """Of the temperature's logarithm; ``num_actions`` is how many numbers an action has."""
