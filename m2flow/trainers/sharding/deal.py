# SPDX-License-Identifier: Apache-2.0
"""Which rank computes which micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from m2flow.trainers.base import Workload


@dataclass(frozen=True)
class Turn:
    """What one rank computes while all others compute theirs."""

    rows: Int[Tensor, "rows"]
    index: int | None
    """Which micro-batch of the mini-batch it is; None: it only keeps the others company and counts for nothing."""


def deal(work: Workload, minibatch: Sequence[Int[Tensor, "rows"]], *, rank: int, num_ranks: int) -> list[Turn]:
    """The turns of ``rank``: as many as every other rank has, since sharded models are computed by all at once.

    Micro-batches of about equal size fall into one turn, so that nobody waits long. A rank that has none left computes
    the mini-batch's smallest sample.
    """
    sizes = [work.tokens(rows.tolist()) for rows in minibatch]
    order = sorted(range(len(minibatch)), key=lambda i: -sizes[i])
    turns = []
    for first in range(0, len(order), num_ranks):
        at = first + (num_ranks - 1 - rank if (first // num_ranks) % 2 else rank)
        turns.append(Turn(minibatch[order[at]], order[at]) if at < len(order) else _company(work, minibatch))
    return turns


def balance(work: Workload, minibatch: Sequence[Int[Tensor, "rows"]], *, num_ranks: int) -> float:
    """Which part of the ranks' time they have something to compute in, if tokens are all that matters."""
    sizes = sorted((work.tokens(rows.tolist()) for rows in minibatch), reverse=True)
    return sum(sizes) / (num_ranks * sum(sizes[::num_ranks]))


def _company(work: Workload, minibatch: Sequence[Int[Tensor, "rows"]]) -> Turn:
    smallest = min(torch.cat(list(minibatch)).tolist(), key=lambda row: work.tokens([row]))
    return Turn(torch.tensor([smallest]), None)
