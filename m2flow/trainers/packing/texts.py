# SPDX-License-Identifier: Apache-2.0
"""One update's groups of texts as a workload: packed rows in, padded [S, T] log-probs, entropies and values out."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Outputs
from m2flow.data.samples import Group, Sample
from m2flow.errors import LearnerError
from m2flow.trainers.packing.cut import Sizes, cut
from m2flow.trainers.packing.layout import PackedRow, pack
from m2flow.trainers.packing.logprobs import chunked_logprobs


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of one learner."""

    policy: Any
    reference: Any | None = None
    critic: Any | None = None
    call: Callable[[Any, Callable[[], Any]], Any] = lambda module, compute: compute()
    """``Trainer.call``: every use of a model's parameters goes through it."""

    @property
    def modules(self) -> list[Any]:
        """The torch modules of all of them; with adapters the reference is the policy's own once more."""
        return [model.module for model in (self.policy, self.reference, self.critic) if model is not None]


class Texts:
    """The samples of ``groups`` in order, one row each; implements ``trainers.base.Workload``."""

    def __init__(self, models: Models, groups: Sequence[Group], *, temperature: float = 1.0) -> None:
        self.models, self.groups, self.temperature = models, groups, temperature
        self.members: list[tuple[int, Sample]] = [
            (i, sample) for i, group in enumerate(groups) for sample in group.samples
        ]
        self.longest = max((len(sample.token_ids) for _, sample in self.members), default=0)

    @cached_property
    def _sizes(self) -> Sizes:
        return Sizes(
            groups=[group for group, _ in self.members],
            prompts=[len(self.groups[group].prompt_ids) for group, _ in self.members],
            responses=[len(sample.token_ids) for _, sample in self.members],
        )

    def microbatches(self, rows: Sequence[int], max_tokens: int, *, multiple: int = 1) -> list[list[int]]:
        """See ``Workload.microbatches``; tokens are those of packed rows."""
        return cut(rows, self._sizes, bound=max_tokens, multiple=multiple)

    def tokens(self, rows: Sequence[int]) -> int:
        """See ``Workload.tokens``: those of a packed row."""
        return self._sizes.total(rows)

    def outputs(self, rows: Sequence[int], needs: frozenset[str]) -> Outputs:
        """See ``Workload.outputs``."""
        packed = self._pack(rows)
        logprobs, entropies = self._predict(self.models.policy, packed, entropies="entropies" in needs)
        values = self._values(packed) if self.models.critic is not None and "values" in needs else None
        return Outputs(
            logprobs=self._pad(rows, logprobs),
            entropies=None if entropies is None else self._pad(rows, entropies),
            values=None if values is None else self._pad(rows, values),
        )

    def values(self, rows: Sequence[int]) -> Float[Tensor, "n T"]:
        """The critic's values alone."""
        return self._pad(rows, self._values(self._pack(rows)))

    def logprobs(self, rows: Sequence[int]) -> Float[Tensor, "n T"]:
        """The policy's log-probs alone."""
        return self._pad(rows, self._predict(self.models.policy, self._pack(rows))[0])

    def reference_logprobs(self, rows: Sequence[int]) -> Float[Tensor, "n T"]:
        """See ``Workload.reference_logprobs``; at the policy's temperature, so that equal weights give a KL of 0."""
        if self.models.reference is None:
            raise LearnerError("there is no reference policy: the algorithm's `needs` lack 'reference_logprobs'")
        return self._pad(rows, self._predict(self.models.reference, self._pack(rows))[0])

    def advantages(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """See ``Workload.advantages``: a row is a whole sample."""
        return algorithm.advantages(batch)

    def describe(self, row: int) -> str:
        """See ``Workload.describe``."""
        group, sample = self.members[row]
        return f"sample {sample.index} of prompt '{self.groups[group].prompt.id}'"

    def _predict(
        self, model: Any, row: PackedRow, *, entropies: bool = False
    ) -> tuple[Float[Tensor, "predictions"], Float[Tensor, "predictions"] | None]:
        options = {"temperature": self.temperature, "entropies": entropies}
        return self.models.call(model.module, lambda: _predict(model, row, **options))

    def _values(self, row: PackedRow) -> Float[Tensor, "predictions"]:
        critic = self.models.critic
        if critic is None:
            raise LearnerError("values were asked of a learner without a critic: the algorithm's `needs` lack 'values'")
        return self.models.call(critic.module, lambda: critic.values(row))

    def _pack(self, rows: Sequence[int]) -> PackedRow:
        responses: dict[int, list[np.ndarray]] = {}
        for row in _in_order(rows):
            responses.setdefault(self.members[row][0], []).append(self.members[row][1].token_ids)
        device = self.models.policy.head_weight.device
        return pack([(self.groups[i].prompt_ids, parts) for i, parts in responses.items()], device)

    def _pad(self, rows: Sequence[int], flat: Float[Tensor, "predictions"]) -> Float[Tensor, "n T"]:
        lengths = torch.tensor([len(self.members[row][1].token_ids) for row in rows], device=flat.device)
        filled = torch.arange(self.longest, device=flat.device) < lengths[:, None]
        return flat.new_zeros(filled.shape).masked_scatter(filled, flat)


def _in_order(rows: Sequence[int]) -> Sequence[int]:
    """Packed rows hold groups together, which ascending rows do: members are numbered group by group."""
    if any(b <= a for a, b in itertools.pairwise(rows)):
        raise LearnerError(f"rows of a micro-batch must ascend, got {list(rows)}")
    return rows


def _predict(
    policy: Any, row: PackedRow, *, temperature: float, entropies: bool
) -> tuple[Float[Tensor, "predictions"], Float[Tensor, "predictions"] | None]:
    hidden = policy.hidden(row.token_ids, row.positions, layout=row.layout)[row.predicting]
    return chunked_logprobs(
        hidden, policy.head_weight, labels=row.targets, temperature=temperature, entropies=entropies
    )


def batch_of(groups: Sequence[Group], device: torch.device | str = "cpu") -> Batch:
    """The samples of ``groups``, one row each, padded to the longest response. Every sample has a reward."""
    samples = [sample for group in groups for sample in group.samples]
    lengths = torch.tensor([len(sample.token_ids) for sample in samples], device=device)
    mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
    sampled = np.concatenate([sample.sampled_logprobs for sample in samples]).astype(np.float32)
    return Batch(
        mask=mask,
        rewards=torch.tensor([float(sample.reward or 0.0) for sample in samples], device=device),
        group_ids=torch.tensor([i for i, group in enumerate(groups) for _ in group.samples], device=device),
        rollout_logprobs=torch.zeros(mask.shape, device=device).masked_scatter(
            mask, torch.from_numpy(sampled).to(device)
        ),
        truncated=torch.tensor([sample.finish_reason == "length" for sample in samples], device=device),
    )


@torch.no_grad()
def token_logprobs(
    policy: Any, groups: Sequence[Group], *, temperature: float = 1.0, max_tokens: int = 2048
) -> list[list[Float[Tensor, "T"]]]:
    """The policy's log-prob of every response token, as one tensor per sample and one list per group."""
    texts = Texts(Models(policy=policy), groups, temperature=temperature)
    found: dict[int, Tensor] = {}
    for rows in texts.microbatches(range(len(texts.members)), max_tokens):
        padded = texts.logprobs(rows)
        found |= {row: padded[at, : len(texts.members[row][1].token_ids)] for at, row in enumerate(rows)}
    each = (found[row] for row in range(len(texts.members)))
    return [[next(each) for _ in group.samples] for group in groups]
