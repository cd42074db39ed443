# SPDX-License-Identifier: Apache-2.0
"""Between divided tensors, the parts of them that stand in a state, and whole ones."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.tensor import DTensor

from m2flow.trainers.sharding import shards

BUCKET_BYTES = 2**26
"""Whole tensors are made for this much at once, or for one that alone is larger."""


def mark(rows: Shaped[Tensor, "rows *rest"], *, like: DTensor) -> dict[str, Any]:
    """This rank's ``rows`` of a tensor that is divided as ``like`` is, as they stand in a state."""
    return shards.mark(rows, _own_rows(like).start, shape=like.shape)


def local(saved: Any, *, like: DTensor) -> Shaped[Tensor, "rows *rest"]:
    """This rank's rows of what a state holds.

    Raises:
        CheckpointError: it has another shape than ``like``, or lacks these rows.
    """
    return shards.rows_of(saved, _own_rows(like), shape=like.shape)


def restored(saved: Any, *, like: DTensor) -> DTensor:
    """What a state holds, divided as ``like`` is, on its device.

    Raises:
        CheckpointError: it has another shape than ``like``, or lacks this rank's rows.
    """
    rows = local(saved, like=like).to(like.device)
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _own_rows(divided: DTensor) -> range:
    mesh = divided.device_mesh
    return shards.own_rows(divided.shape[0], mesh.get_local_rank(), num_ranks=mesh.size())


def gathered(tensors: Mapping[str, DTensor], *, bucket_bytes: int = BUCKET_BYTES) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` whole, in their order; all ranks go through it together, to the end.

    One collective a bucket; no more than two buckets are in memory beside what the caller keeps.
    """
    bucket: dict[str, DTensor] = {}
    for name, tensor in tensors.items():
        bucket[name] = tensor
        if sum(t.numel() * t.element_size() for t in bucket.values()) >= bucket_bytes:
            yield from _whole(bucket)
            bucket = {}
    if bucket:
        yield from _whole(bucket)


def _whole(bucket: Mapping[str, DTensor]) -> Iterator[tuple[str, Tensor]]:
    group = next(iter(bucket.values())).device_mesh.get_group()
    own = [_padded_bytes(tensor) for tensor in bucket.values()]
    found = own[0].new_empty(group.size(), sum(map(len, own)))
    dist.all_gather(list(found), torch.cat(own), group=group)
    pieces = found.split([len(raw) for raw in own], dim=1)
    for (name, tensor), piece in zip(bucket.items(), pieces, strict=True):
        yield name, piece.flatten().view(tensor.dtype)[: tensor.numel()].view(tensor.shape)


def _padded_bytes(tensor: DTensor) -> Tensor:
    """This rank's rows, followed by zeros up to as many rows as the first rank has."""
    rows, first = tensor.to_local(), shards.own_rows(tensor.shape[0], 0, num_ranks=tensor.device_mesh.size())
    padded = rows.new_zeros(len(first) * math.prod(tensor.shape[1:]))
    padded[: rows.numel()] = rows.flatten()
    return padded.view(torch.uint8)
