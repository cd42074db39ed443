# SPDX-License-Identifier: Apache-2.0
"""Ticks of environments as a workload: a row for each tick, so that mini-batches mix them freely.

Advantages are about pieces of episodes: what one environment did from a reset, or the first tick, to the episode's end,
or the last tick. ``pieces`` folds rows to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch, Outputs
from m2flow.data.trajectories import Trajectories
from m2flow.errors import LearnerError
from m2flow.trainers.packing.texts import Models


class Ticks:
    """The ``T`` ticks of ``N`` environments as ``N * T`` rows, environment by environment.

    Implements ``trainers.base.Workload``. The policy is an ``Actor``, the critic its ``Values``.
    """

    def __init__(self, models: Models, trajectories: Trajectories, *, device: torch.device | str = "cpu") -> None:
        self.models, self.trajectories, self.device = models, trajectories, torch.device(device)
        self.num_ticks, self.num_rows = trajectories.rewards.shape
        self.observations = {name: self._by_row(array) for name, array in trajectories.observations.items()}
        self.actions = self._by_row(trajectories.actions)

    def batch(self) -> Batch:
        """One row of one position for each tick; every row is a group of its own, which any mini-batch may hold."""
        t = self.trajectories
        mask = self._by_row(t.mask)[:, None]
        return Batch(
            mask=mask,
            rewards=torch.zeros(len(mask), device=self.device),
            token_rewards=self._by_row(t.rewards)[:, None].float(),
            group_ids=torch.arange(len(mask), device=self.device),
            rollout_logprobs=self._by_row(t.logprobs)[:, None],
            truncated=self._by_row(t.truncated),
        )

    @cached_property
    def pieces(self) -> "Pieces":
        """Where episodes are cut."""
        return Pieces(self.trajectories)

    def microbatches(self, rows: Sequence[int], max_tokens: int, *, multiple: int = 1) -> list[list[int]]:
        """See ``Workload.microbatches``; a token is a tick."""
        num = -(-len(rows) // max_tokens)
        num = min(-(-num // multiple) * multiple, len(rows))
        return [part.tolist() for part in np.array_split(np.asarray(rows), num)] if num else []

    def tokens(self, rows: Sequence[int]) -> int:
        """See ``Workload.tokens``."""
        return len(rows)

    def outputs(self, rows: Sequence[int], needs: frozenset[str]) -> Outputs:
        """See ``Workload.outputs``."""
        logprobs, entropies = self._evaluated(self.models.policy, rows)
        return Outputs(
            logprobs=logprobs,
            entropies=entropies if "entropies" in needs else None,
            values=self.values(rows) if "values" in needs else None,
        )

    def logprobs(self, rows: Sequence[int]) -> Float[Tensor, "n 1"]:
        """See ``Workload.logprobs``."""
        return self._evaluated(self.models.policy, rows)[0]

    def reference_logprobs(self, rows: Sequence[int]) -> Float[Tensor, "n 1"]:
        """See ``Workload.reference_logprobs``."""
        if self.models.reference is None:
            raise LearnerError("there is no reference policy: the algorithm's `needs` lack 'reference_logprobs'")
        return self._evaluated(self.models.reference, rows)[0]

    def values(self, rows: Sequence[int]) -> Float[Tensor, "n 1"]:
        """See ``Workload.values``."""
        return self._valued(self._seen(rows))[:, None]

    def advantages(self, algorithm: Algorithm, batch: Batch) -> Batch:
        """See ``Workload.advantages``: about pieces of episodes, which go on where only the ticks end."""
        folded = self.pieces.fold(batch)
        if "values" in algorithm.needs:
            folded = replace(folded, bootstraps=self._bootstraps())
        return self.pieces.unfold(algorithm.advantages(folded), like=batch)

    def describe(self, row: int) -> str:
        """See ``Workload.describe``."""
        number, tick = divmod(row, self.num_ticks)
        return f"tick {tick} of environment {number}"

    def _by_row(self, array: np.ndarray) -> Tensor:
        """[T, N, ...] as [N * T, ...]."""
        return torch.from_numpy(np.ascontiguousarray(array.swapaxes(0, 1))).flatten(0, 1).to(self.device)

    def _seen(self, rows: Sequence[int]) -> dict[str, Tensor]:
        index = torch.as_tensor(rows, device=self.device)
        return {name: array[index] for name, array in self.observations.items()}

    def _evaluated(self, policy: Any, rows: Sequence[int]) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]:
        seen, actions = self._seen(rows), self.actions[torch.as_tensor(rows, device=self.device)]
        logprobs, entropies = self.models.call(policy.module, lambda: policy.evaluate(seen, actions))
        return logprobs[:, None], entropies[:, None]

    def _valued(self, observations: Mapping[str, Tensor]) -> Float[Tensor, "n"]:
        critic = self.models.critic
        if critic is None:
            raise LearnerError("values were asked of a learner without a critic: the algorithm's `needs` lack 'values'")
        return self.models.call(critic.module, lambda: critic.values(observations))

    def _bootstraps(self) -> Float[Tensor, "S"]:
        """Of each piece: 0 where the task ended the episode, else the value of the state that it ended with."""
        t, (number, tick) = self.trajectories, np.divmod(self.pieces.ends, self.num_ticks)
        following = self._value_of(t.last_observations)[number]
        final, place = self._value_of(t.final_observations), np.full(t.rewards.shape, -1)
        place[t.ended[:, 0], t.ended[:, 1]] = np.arange(len(t.ended))
        ends = torch.from_numpy(place[tick, number]).to(self.device)
        following[ends >= 0] = final[ends[ends >= 0]]
        return following.masked_fill(torch.from_numpy(t.terminated[tick, number]).to(self.device), 0.0)

    def _value_of(self, observations: Mapping[str, np.ndarray]) -> Float[Tensor, "n"]:
        whole = {name: np.ascontiguousarray(array) for name, array in observations.items()}
        return self._valued({name: torch.from_numpy(array).to(self.device) for name, array in whole.items()})


class Pieces:
    """Episodes cut where they end and where the ticks do, in the numbering of rows of ``Ticks``."""

    def __init__(self, trajectories: Trajectories) -> None:
        t = trajectories
        self.num_ticks = len(t.rewards)
        cut = (t.terminated | t.truncated).copy()
        cut[-1] = True
        (self.ends,) = np.nonzero(cut.T.ravel())
        """[S] the last row of each piece, ascending."""
        self.begins = np.concatenate([[0], self.ends[:-1] + 1])
        lengths = torch.from_numpy(self.ends - self.begins + 1)
        self.inside = torch.arange(int(lengths.max())) < lengths[:, None]
        """[S, longest] which places of a padded row hold a tick; in order, they are the ticks."""
        number = self.begins // self.num_ticks
        order = np.arange(len(number)) - np.searchsorted(number, number)
        self.group_ids = torch.from_numpy(t.group_ids[number] * len(number) + order)
        """[S] the k-th pieces of the environments of a group are one group."""

    def fold(self, batch: Batch) -> Batch:
        """[N * T, 1] rows as [S, longest] pieces, padded on the right; rewards of ticks are token rewards."""
        inside = self.inside.to(batch.mask.device)
        folded = {
            name: value.new_zeros(inside.shape).masked_scatter(inside, value)
            for name, value in _tensors(batch).items()
            if value.dim() == 2
        }
        return replace(
            batch,
            **folded,
            rewards=batch.rewards.new_zeros(len(inside)),
            group_ids=self.group_ids.to(batch.group_ids.device),
            truncated=batch.truncated[self.ends],
        )

    def unfold(self, folded: Batch, *, like: Batch) -> Batch:
        """What ``fold`` made, as rows like those it was made of."""
        inside = self.inside.to(like.mask.device)
        rows = {name: value[inside][:, None] for name, value in _tensors(folded).items() if value.dim() == 2}
        return replace(like, **rows)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}
