# SPDX-License-Identifier: Apache-2.0
"""Weights from another node, over TCP, tensor by tensor into memory that is used again."""

import torch

from m2flow.errors import WeightsError
from m2flow.transport.peers import Peers
from m2flow.weights.base import WeightsHandle, num_bytes, views


class Network:
    """The route by TCP: two buffers in turn, so that the version before the newest stays."""

    def __init__(self, *, authkey: bytes, timeout_s: float) -> None:
        self._peers = Peers(authkey=authkey, timeout_s=timeout_s)
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 2

    def receive(self, handle: WeightsHandle) -> dict[str, torch.Tensor]:
        """A copy of the version."""
        size = num_bytes(handle.layout)
        buffer = self._buffers[0] if len(self._buffers[0]) == size else torch.empty(size, dtype=torch.uint8)
        with self._peers.open(handle) as incoming:
            if incoming.size != size:
                raise WeightsError(
                    f"version {handle.version} has {size} bytes, and {incoming.size} came: receive it again"
                )
            incoming.into(buffer.numpy())
        self._buffers = [self._buffers[1], buffer]
        return views(buffer, handle.layout)

    def close(self) -> None:
        """Close the connections."""
        self._peers.close()
