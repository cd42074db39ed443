# SPDX-License-Identifier: Apache-2.0
"""The way through one update's batch: mini-batches of whole groups, each cut into micro-batches, over epochs."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from m2flow.trainers.base import Workload

Minibatch = list[Tensor]
"""The micro-batches of one optimizer step: row numbers, ascending."""


def make(
    work: Workload, group_ids: Int[Tensor, "S"], *, num: int, max_tokens: int, seed: int, multiple: int = 1
) -> list[Minibatch]:
    """Mini-batches with about equal numbers of groups; fewer than ``num`` where there are fewer groups."""
    parts = minibatches(group_ids, num, seed=seed)
    return [[torch.tensor(rows) for rows in work.microbatches(part, max_tokens, multiple=multiple)] for part in parts]


def minibatches(group_ids: Int[Tensor, "S"], num: int, *, seed: int) -> list[list[int]]:
    """Rows of each mini-batch, ascending; which groups go together is drawn from ``seed``."""
    groups = group_ids.unique()
    order = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))]
    parts = torch.tensor_split(order.cpu(), min(num, len(groups)))
    return [torch.isin(group_ids.cpu(), part).nonzero()[:, 0].tolist() for part in parts]


def epochs(plan: Sequence[Minibatch], num: int, *, seed: int) -> Iterator[Minibatch]:
    """Every mini-batch once an epoch, in a new order each time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num):
        for i in torch.randperm(len(plan), generator=generator).tolist():
            yield plan[i]
