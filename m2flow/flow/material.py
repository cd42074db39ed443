# SPDX-License-Identifier: Apache-2.0
"""What a learner makes of the items it is given: groups of texts, or ticks of environments."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from m2flow.algorithms.base import Algorithm, OffPolicy
from m2flow.data.samples import Group
from m2flow.data.trajectories import Trajectories
from m2flow.engines.base import SamplingConfig
from m2flow.errors import LearnerError
from m2flow.flow import tallies
from m2flow.flow.selection import in_order, select
from m2flow.policies.base import Actor
from m2flow.trainers.base import Settings, Trainer
from m2flow.trainers.control.soft_update import SoftUpdate
from m2flow.trainers.control.ticks import Ticks
from m2flow.trainers.packing.critic import Critic
from m2flow.trainers.packing.texts import Models, Texts, batch_of


class Taken(ABC):
    """What one update is about."""

    metrics: dict[str, float]
    """Of everything that came, whether it is learned from or not."""
    is_empty: bool
    """Whether nothing of it is learned from."""

    @abstractmethod
    def train(self, models: Models, trainer: Trainer, *, settings: Settings) -> dict[str, float]:
        """One update; returns metrics. Where it made a step ``learner/steps`` is above 0."""


class Material(ABC):
    """What policies of one kind learn from."""

    max_tokens: int
    """Of one sample."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm

    @abstractmethod
    def critic(self, policy: Any) -> Any:
        """What the algorithm needs beside ``policy`` that values; ``None`` where it needs nothing."""

    @abstractmethod
    def take(self, items: Iterable[Any] | Trajectories, *, trainer: Trainer) -> Taken:
        """All of ``items``, checked.

        Raises:
            LearnerError: they are not what this policy learns from, or cannot be cut as the trainer is configured.
        """


def material_of(policy: Any, algorithm: Any, *, sampling: SamplingConfig | None) -> Material:
    """What ``policy`` learns from.

    Raises:
        LearnerError: ``algorithm`` or ``sampling`` do not suit it.
        ModelError: it does not draw actions as ``algorithm`` wants them.
    """
    if not isinstance(policy, Actor):
        if isinstance(algorithm, OffPolicy):
            raise LearnerError(f"algorithm '{algorithm.name}' values actions, the policy '{policy.name}' makes texts")
        return _TextMaterial(algorithm, sampling or SamplingConfig())
    if sampling is not None:
        raise LearnerError(f"sampling is how tokens are drawn, the policy '{policy.name}' draws none: leave it out")
    if isinstance(algorithm, OffPolicy):
        # Refused now, not after the first ticks.
        policy.bounded(torch.zeros(1, *policy.interface.action.shape))
        return _MemoryMaterial(algorithm)
    if algorithm.per_sequence:
        raise LearnerError(
            f"algorithm '{algorithm.name}' as configured has losses of whole sequences, and a control policy learns "
            "from single ticks: choose aggregation token-mean, and an algorithm whose ratio is one token's"
        )
    return _TickMaterial(algorithm)


class _TextMaterial(Material):
    def __init__(self, algorithm: Algorithm, sampling: SamplingConfig) -> None:
        super().__init__(algorithm)
        if sampling.temperature <= 0:
            raise LearnerError("sampling.temperature is 0, which has no log-probs to train on: set it above 0")
        self.sampling = sampling
        self.max_tokens = sampling.max_new_tokens

    def critic(self, policy: Any) -> Critic | None:
        return Critic(policy) if "values" in self.algorithm.needs else None

    def take(self, items: Iterable[Any] | Trajectories, *, trainer: Trainer) -> "_Groups":
        selection = select([items] if isinstance(items, Trajectories) else items, self.algorithm)
        self._require_same_sampling(selection.kept)
        trainer.check(num_groups=selection.wanted, longest_response=self.max_tokens)
        return _Groups(in_order(selection.kept), selection.metrics(), temperature=self.sampling.temperature)

    def _require_same_sampling(self, groups: Sequence[Group]) -> None:
        """A response says how it was sampled: top-p and top-k only raise the log-probs of what they keep."""
        samples = [sample for group in groups for sample in group.samples]
        longest = max((len(sample.token_ids) for sample in samples), default=0)
        if longest > self.max_tokens:
            raise LearnerError(
                f"a response has {longest} tokens, the learner's sampling.max_new_tokens is {self.max_tokens}: give "
                "the Learner the rollout's sampling"
            )
        if self.sampling.temperature != 1 or not samples:
            return
        gap = np.concatenate([sample.logprobs - sample.sampled_logprobs for sample in samples])
        if gap.max(initial=0.0) > 1e-2:
            raise LearnerError(
                "the responses were sampled at another temperature than 1, the learner's: give the Learner the "
                "rollout's sampling"
            )


class _Groups(Taken):
    def __init__(self, kept: list[Group], metrics: dict[str, float], *, temperature: float) -> None:
        self.kept, self.metrics, self.temperature = kept, metrics, temperature
        self.is_empty = not kept

    def train(self, models: Models, trainer: Trainer, *, settings: Settings) -> dict[str, float]:
        texts = Texts(models, self.kept, temperature=self.temperature)
        return trainer.update(texts, batch_of(self.kept, models.policy.head_weight.device), settings=settings)


class _TickMaterial(Material):
    max_tokens = 1

    def critic(self, policy: Any) -> Any:
        return policy.critic() if "values" in self.algorithm.needs else None

    def take(self, items: Iterable[Any] | Trajectories, *, trainer: Trainer) -> "_Ticks":
        trajectories, algorithm = _only_trajectories(items), self.algorithm
        if not ("values" in algorithm.needs or trajectories.whole_episodes):
            raise LearnerError(
                f"algorithm '{algorithm.name}' has no critic that says what an unfinished episode is worth: collect "
                "whole ones, rollout.interact(env, episodes=1), or choose 'ppo'"
            )
        return _Ticks(trajectories)


class _MemoryMaterial(Material):
    max_tokens = 1

    def critic(self, policy: Any) -> SoftUpdate:
        return SoftUpdate(policy, self.algorithm)

    def take(self, items: Iterable[Any] | Trajectories, *, trainer: Trainer) -> "_Remembered":
        return _Remembered(_only_trajectories(items))


def _only_trajectories(items: Iterable[Any] | Trajectories) -> Trajectories:
    all_items = [items] if isinstance(items, Trajectories) else list(items)
    wrong = [item for item in all_items if not isinstance(item, Trajectories)]
    if wrong or len(all_items) != 1:
        got = type(wrong[0]).__name__ if wrong else f"{len(all_items)} items"
        raise LearnerError(f"got {got}, expected what one rollout.interact returned: a control policy learns of it")
    return all_items[0]


class _Ticks(Taken):
    def __init__(self, trajectories: Trajectories) -> None:
        t = self.trajectories = trajectories
        self.is_empty = not t.mask.any()
        counted = t.rewards[t.mask]
        self.metrics = {
            **tallies.of_episodes(t.episodes),
            "episode/lost": float(t.num_lost),
            "learner/ticks": float(len(counted)),
            **({} if self.is_empty else {"reward/mean": float(counted.mean(dtype=np.float64))}),
        }
        if not np.isfinite(counted).all():
            tick, row = (int(i) for i in np.argwhere(t.mask & ~np.isfinite(t.rewards))[0])
            raise LearnerError(
                f"tick {tick} of environment {row} has reward {t.rewards[tick, row]}, expected a finite number: mend "
                "the simulator"
            )

    def train(self, models: Models, trainer: Trainer, *, settings: Settings) -> dict[str, float]:
        work = Ticks(models, self.trajectories, device=next(models.policy.module.parameters()).device)
        metrics = trainer.update(work, work.batch(), settings=settings)
        if metrics["learner/steps"]:
            self._observe(models.policy)
        return metrics

    def _observe(self, policy: Any) -> None:
        """After they were learned from, by the statistics that they were acted with."""
        t = self.trajectories
        policy.observe({name: torch.from_numpy(array[t.mask]) for name, array in t.observations.items()})


class _Remembered(_Ticks):
    """Ticks that go into the memory, from which as many are drawn as the trainer's passes say."""

    def train(self, models: Models, trainer: Trainer, *, settings: Settings) -> dict[str, float]:
        objective: Any = models.critic
        objective.seed = settings.seed
        objective.remember(self.trajectories)
        self._observe(models.policy)
        size = {"replay/size": float(len(objective.memory))}
        if not objective.is_ready:
            return {**size, "learner/steps": 0.0}
        num = int(self.trajectories.mask.sum())
        return {**size, **trainer.fit(objective, num=num, settings=settings)}
