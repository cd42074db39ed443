# SPDX-License-Identifier: Apache-2.0
"""What an algorithm needs before the first optimizer step: old and reference log-probs, values, advantages."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.base import Algorithm, Batch
from m2flow.errors import LearnerError
from m2flow.trainers.base import Workload
from m2flow.trainers.optimization.plan import Minibatch

Compute = Callable[[Sequence[int]], Tensor]
"""From rows to their [rows, T] numbers."""


@torch.no_grad()
def prepare(
    work: Workload, batch: Batch, *, algorithm: Algorithm, whole: Callable[[Compute], Tensor], num_steps: int
) -> Batch:
    """``batch`` with all that ``algorithm`` needs, and its advantages over the whole of it.

    ``whole`` computes something for all rows. Old log-probs cost a forward pass of their own only where advantages read
    them or weights change before they are last used; otherwise they are the current ones.

    Raises:
        LearnerError: an advantage of a counted token is not finite.
    """
    needs = algorithm.needs
    if "old_logprobs" in needs and (num_steps > 1 or "old_logprobs" not in algorithm.loss_only):
        batch = replace(batch, old_logprobs=whole(work.logprobs))
    if "reference_logprobs" in needs:
        batch = replace(batch, reference_logprobs=whole(work.reference_logprobs))
    if "values" in needs:
        batch = replace(batch, values=whole(work.values))
    batch = work.advantages(algorithm, batch)
    _require_finite(work, batch)
    return batch


def computed(compute: Compute, plan: Iterable[Minibatch], *, like: Float[Tensor, "S T"]) -> Float[Tensor, "S T"]:
    """Computed in the same micro-batches as the steps, so that equal weights give equal bits; 0 where no row is."""
    out = torch.zeros_like(like)
    for minibatch in plan:
        for rows in minibatch:
            out[rows] = compute(rows.tolist())
    return out


def _require_finite(work: Workload, batch: Batch) -> None:
    if batch.advantages is None:
        raise LearnerError("the algorithm's `advantages` returned a batch without advantages")
    wrong = (batch.mask & ~batch.advantages.isfinite()).any(1).nonzero()[:, 0].tolist()
    if wrong:
        named = ", ".join(work.describe(row) for row in wrong[:3])
        raise LearnerError(
            f"advantages are not finite for {named} ({len(wrong)} samples in all): look at their rewards"
        )


def agreement(
    rollout: Float[Tensor, "S T"], learner: Float[Tensor, "S T"], *, mask: Bool[Tensor, "S T"]
) -> dict[str, float]:
    """How far the learner's log-probs, before the first step, are from those that the rollout sampled from.

    ``rollout/kl`` estimates KL(rollout, learner) as the mean of r - 1 - log r with r = learner/rollout (k3).
    """
    gap = (learner - rollout)[mask]
    if not len(gap):
        return {}
    return {
        "rollout/logprob_diff_mean": gap.abs().mean().item(),
        "rollout/logprob_diff_max": gap.abs().max().item(),
        "rollout/kl": (gap.expm1() - gap).mean().item(),
    }


def correction(came: Batch, prepared: Batch) -> dict[str, float]:
    """What the algorithm's correction for another rollout policy did to the tokens that ``came``; empty without one.

    ``rollout/rejected_fraction`` is the share of tokens that its rules leave out of the loss, the others describe the
    importance weights of the tokens that stay.
    """
    kept, found = prepared.mask, {}
    if not torch.equal(kept, came.mask):
        found["rollout/rejected_fraction"] = 1 - kept.sum().item() / came.mask.sum().item()
    if prepared.weights is not None and kept.any():
        weights = prepared.weights[kept]
        found["rollout/importance_weight_mean"] = weights.mean().item()
        found["rollout/importance_weight_min"] = weights.min().item()
        found["rollout/importance_weight_max"] = weights.max().item()
    return found
