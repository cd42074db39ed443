# SPDX-License-Identifier: Apache-2.0
"""Which groups are trained on: those with rewards that the algorithm keeps, and others in place of the rest."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from m2flow.algorithms.base import Algorithm
from m2flow.data.samples import Group, Sample
from m2flow.errors import LearnerError
from m2flow.flow.stream import Stream


@dataclass(kw_only=True)
class Selection:
    """``kept`` are trained on; ``received`` is everything that came, which the statistics of rewards are about."""

    wanted: int
    """How many groups were asked for at first; there are never more in ``kept``."""
    kept: list[Group] = field(default_factory=list)
    received: list[Group] = field(default_factory=list)
    unscored: int = 0
    """Samples to which no reward applied."""
    rounds: int = 0
    """How often missing groups were sampled anew."""

    @property
    def missing(self) -> int:
        """How many groups are wanted and not kept yet."""
        return max(self.wanted - len(self.kept), 0)

    def take(self, groups: Iterable[Group], algorithm: Algorithm) -> None:
        """Sort new groups into kept and not.

        Raises:
            LearnerError: a reward is infinite or no number.
        """
        for group in groups:
            if not isinstance(group, Group):
                raise LearnerError(f"got a {type(group).__name__}, expected scored groups: reward.score makes them")
            _require_finite(group)
            self.received.append(group)
            samples = [sample for sample in group.samples if sample.reward is not None]
            self.unscored += len(group.samples) - len(samples)
            if samples and algorithm.keep(torch.tensor([sample.reward for sample in samples])):
                self.kept.append(replace(group, samples=samples))

    def metrics(self) -> dict[str, float]:
        """Rewards and lengths over everything received, counts of what was kept."""
        samples = [sample for group in self.received for sample in group.samples]
        return {
            **_of_rewards(samples),
            **_of_lengths(samples),
            "learner/groups_kept": float(len(self.kept)),
            "learner/groups_dropped": float(len(self.received) - len(self.kept)),
            "learner/samples_without_reward": float(self.unscored),
            "learner/resampling_rounds": float(self.rounds),
            "learner/tokens": float(sum(len(s.token_ids) for group in self.kept for s in group.samples)),
        }


def select(groups: Iterable[Group], algorithm: Algorithm) -> Selection:
    """Take ``groups``, and more of them while the algorithm kept too few and has rounds left.

    Only a ``Stream`` can give more. Those beyond the number at first are cut off.

    Raises:
        LearnerError: a reward is infinite or no number.
        FlowError: the algorithm resamples, and the stream's source cannot give more.
    """
    first = list(groups)
    selection = Selection(wanted=len(first))
    selection.take(first, algorithm)
    while isinstance(groups, Stream) and selection.missing and selection.rounds < algorithm.max_resampling_rounds:
        selection.rounds += 1
        selection.take(groups.more(selection.missing), algorithm)
    selection.kept = selection.kept[: selection.wanted]
    return selection


def _require_finite(group: Group) -> None:
    for sample in group.samples:
        if sample.reward is not None and not math.isfinite(sample.reward):
            raise LearnerError(
                f"sample {sample.index} of prompt '{group.prompt.id}' has reward {sample.reward}, expected a finite "
                f"number: look at its rewards, {sample.rewards}"
            )


def in_order(groups: list[Group]) -> list[Group]:
    """``groups`` and their samples in an order that does not depend on how they arrived."""
    inside = [replace(group, samples=sorted(group.samples, key=lambda s: s.index)) for group in groups]
    return sorted(inside, key=lambda g: (g.prompt.id, [_told_apart(sample) for sample in g.samples]))


def _told_apart(sample: Sample) -> tuple[Any, ...]:
    """Groups of one prompt with the same texts may have other rewards, or come from other weights."""
    return sample.token_ids.tolist(), sample.reward, sample.finish_reason, sample.sampled_logprobs.tolist()


def _of_rewards(samples: list[Sample]) -> dict[str, float]:
    # Sorted, so that not even the last digit depends on the order of arrival.
    totals = sorted(sample.reward for sample in samples if sample.reward is not None)
    out = {"reward/mean": float(np.mean(totals)), "reward/std": float(np.std(totals))} if totals else {}
    for name in sorted({name for sample in samples for name in sample.rewards}):
        own = sorted(value for sample in samples if (value := sample.rewards.get(name)) is not None)
        if own:
            out[f"reward/{name}"] = float(np.mean(own))
    return out


def _of_lengths(samples: list[Sample]) -> dict[str, float]:
    if not samples:
        return {}
    return {
        "response/length_mean": float(np.mean([len(sample.token_ids) for sample in samples])),
        "response/truncated_fraction": float(np.mean([sample.finish_reason == "length" for sample in samples])),
    }
