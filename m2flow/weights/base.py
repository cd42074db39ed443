# SPDX-License-Identifier: Apache-2.0
"""What a publisher of weights, their receivers and the routes between them tell each other."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Shaped, UInt8

from m2flow.transport.block import aligned
from m2flow.transport.segment import Place

State = Mapping[str, torch.Tensor]
"""Named tensors: a state dict, or the trainable part of one (which is how an adapter moves alone)."""


class Entry(NamedTuple):
    """Where one tensor lies in a buffer; offset and size in bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size: int


class WeightsHandle(NamedTuple):
    """All that a receiver needs to find one version."""

    version: int
    checksum: int | None
    """Of all tensors (``checksum.py``); None where they move by reference alone."""
    every: int
    """The checksum covers one byte in so many of large tensors (``checksum.py``)."""
    layout: tuple[Entry, ...]
    key: tuple[str, int]
    """The publisher, and the version."""
    node: str
    place: Place | None
    address: tuple[str, int] | None


class Receipt(NamedTuple):
    """What a receiver says about the weights that it now has."""

    receiver: str
    version: int
    checksum: int | None
    is_in_place: bool
    """Whether it goes on to use the publisher's memory, until its next receipt."""


class Route(Protocol):
    """One way for weights to come."""

    def receive(self, handle: WeightsHandle) -> dict[str, torch.Tensor]:
        """The tensors of a version; they stay as they are until the second ``receive`` from now.

        Raises:
            WeightsError: the version is no longer there.
            TransportError: its publisher is gone.
        """
        ...


def layout_of(state: State) -> tuple[Entry, ...]:
    """The tensors by name, one after another, each at an aligned place."""
    entries, offset = [], 0
    for name in sorted(state):
        tensor = state[name]
        size = tensor.numel() * tensor.element_size()
        entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), offset, size))
        offset += aligned(size)
    return tuple(entries)


def num_bytes(layout: Iterable[Entry]) -> int:
    """Size of a buffer for this layout."""
    return sum(aligned(entry.size) for entry in layout)


def views(buffer: UInt8[torch.Tensor, " bytes"], layout: Iterable[Entry]) -> dict[str, Shaped[torch.Tensor, "..."]]:
    """The tensors that lie in ``buffer``, by name, without a copy."""
    return {e.name: buffer[e.offset : e.offset + e.size].view(e.dtype).view(e.shape) for e in layout}
