# SPDX-License-Identifier: Apache-2.0
"""The processes that share one learner, and the small things that they tell each other."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from m2flow.errors import LearnerError


def join(rank: int, num_ranks: int, *, init_method: str, device: str = "cpu", timeout_s: float = 600) -> None:
    """Make this process one of a learner's ranks; returns when all have come.

    Args:
        init_method: where they meet, the same for all: ``tcp://host:port`` or ``file:///new/path``.
        device: ``cpu`` (they talk by gloo) or ``cuda`` (by NCCL too; this process's device is set already).

    Raises:
        LearnerError: the process belongs to a group already, or the others did not come in time.
    """
    if dist.is_initialized():
        raise LearnerError("this process belongs to a process group already: leave it first")
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    patience = timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=num_ranks, timeout=patience)
    except dist.DistError as error:
        raise LearnerError(
            f"rank {rank} of {num_ranks} did not meet the others at {init_method} within {timeout_s} s ({error}): "
            "look at what stopped them"
        ) from error


def leave() -> None:
    """Undo ``join``."""
    dist.destroy_process_group()


class Ranks:
    """All ranks of the default process group, in one row.

    Raises:
        LearnerError: there is no group.
    """

    def __init__(self) -> None:
        if not dist.is_initialized():
            raise LearnerError(
                "the trainer 'fsdp' works in processes that have joined a group, and this one has not: let a runtime "
                "start the learner on several slots, call trainers.sharding.ranks.join, or take the trainer 'local'"
            )
        with_cuda = torch.cuda.is_available() and "nccl" in dist.get_backend_config()
        self.device = torch.device("cuda" if with_cuda else "cpu")
        self.mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        self.rank, self.num = dist.get_rank(), dist.get_world_size()

    def total(self, tensor: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
        """The sum over the ranks; where all but one hold zeros, that one's numbers, bit for bit."""
        summed = tensor.to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.to(tensor.device)

    def gather(self, value: Any) -> list[Any]:
        """What each rank gave, by rank: anything that JSON holds; NaN and infinities too."""
        text = torch.tensor(list(json.dumps(value).encode("ascii")), dtype=torch.uint8)
        lengths = torch.zeros(self.num, dtype=torch.int64)
        lengths[self.rank] = len(text)
        sizes = self.total(lengths).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = text
        found = [torch.empty_like(padded, device=self.device) for _ in sizes]
        dist.all_gather(found, padded.to(self.device))
        return [json.loads(bytes(raw[:size].tolist())) for raw, size in zip(found, sizes, strict=True)]
