# SPDX-License-Identifier: Apache-2.0
"""Weights to all ranks of a process group (gloo, NCCL) at once: in buckets, one on its way while one is packed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from jaxtyping import Shaped

from m2flow.errors import WeightsError
from m2flow.weights.base import State, layout_of
from m2flow.weights.checksum import checksum


def _buckets(state: State, size: int) -> Iterator[list[Shaped[torch.Tensor, "..."]]]:
    """Tensors in the order of their names, in lists of ``size`` bytes or one tensor."""
    bucket, room = [], size
    for tensor in (state[name].detach() for name in sorted(state) if state[name].numel()):
        room -= _size([tensor])
        if bucket and room < 0:
            yield bucket
            bucket, room = [], size - _size([tensor])
        bucket.append(tensor)
    if bucket:
        yield bucket


def _packed(bucket: list[Shaped[torch.Tensor, "..."]]) -> Shaped[torch.Tensor, " bytes"]:
    return torch.cat([tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in bucket])


def _unpack(flat: Shaped[torch.Tensor, " bytes"], bucket: list[Shaped[torch.Tensor, "..."]]) -> None:
    for part, tensor in zip(flat.split([_size([tensor]) for tensor in bucket]), bucket, strict=True):
        # A copy first: a part may begin where its dtype cannot.
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def broadcast(
    state: State,
    version: int,
    *,
    source: int = 0,
    group: dist.ProcessGroup | None = None,
    bucket_bytes: int = 64 * 2**20,
) -> int:
    """Copy the tensors of rank ``source`` (of the default group) into those of all other ranks of ``group``, in place.

    All ranks call this with tensors of the same names, dtypes and shapes; ``version`` counts on the source alone.
    Returns the source's version. Ranks must have tensors of one device each.

    Raises:
        WeightsError: on every rank, where the checksum of any rank's tensors is not that of the source.
    """
    device = next(iter(state.values())).device
    form = xxhash.xxh3_64_intdigest(str(layout_of(state)).encode())
    _agree(form, "tensors of other names, dtypes or shapes", source=source, group=group, device=device)
    is_source, pending = dist.get_rank() == source, []
    for bucket in _buckets(state, bucket_bytes):
        flat = _packed(bucket) if is_source else torch.empty(_size(bucket), dtype=torch.uint8, device=device)
        pending.append((dist.broadcast(flat, source, group=group, async_op=True), flat, bucket))
        if len(pending) > 1:
            _finish(pending.pop(0), is_source=is_source)
    for sent in pending:
        _finish(sent, is_source=is_source)
    _agree(checksum(state), "other weights after the broadcast", source=source, group=group, device=device)
    number = torch.tensor([version], device=device)
    dist.broadcast(number, source, group=group)
    return int(number)


def _size(bucket: list[Shaped[torch.Tensor, "..."]]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in bucket)


def _finish(sent: tuple[Any, Any, list[Shaped[torch.Tensor, "..."]]], *, is_source: bool) -> None:
    work, flat, bucket = sent
    work.wait()
    if not is_source:
        _unpack(flat, bucket)


def _agree(number: int, what: str, *, source: int, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Fail on every rank where the unsigned 64-bit ``number`` of any is not that of the source."""
    own = torch.from_numpy(np.array([number], np.uint64).view(np.int64)).to(device)
    sent = own.clone()
    dist.broadcast(sent, source, group=group)
    wrong = (own != sent).to(torch.int64)
    dist.all_reduce(wrong, group=group)
    if int(wrong):
        raise WeightsError(
            f"{int(wrong)} of {dist.get_world_size(group)} ranks have {what} than rank {source}: load the same model "
            "on all of them, and let nothing write to it meanwhile"
        )
