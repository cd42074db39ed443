# SPDX-License-Identifier: Apache-2.0
"""What an algorithm is: pure functions of tensors between a trainer that names no algorithm and data that has no model.

``S`` is the number of samples (or trajectories), ``T`` the longest response; rows are padded on the right and ``mask``
says which positions count. Masked positions may hold anything, a NaN too: they never reach a result, and a row without
a counted position is as if it were not there.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

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
