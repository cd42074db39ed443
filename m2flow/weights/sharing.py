# SPDX-License-Identifier: Apache-2.0
"""Weights on the node of their learner: tensors that lie in its memory."""

import warnings

import numpy as np
import torch
from jaxtyping import Shaped

from m2flow.transport.block import ALIGNMENT
from m2flow.transport.segment import mapped
from m2flow.weights.base import WeightsHandle, num_bytes, views
from m2flow.weights.publisher import NUM_BUFFERS, require_stamp


class Sharing:
    """The route by shared memory. The publisher's buffers are mapped once."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def receive(self, handle: WeightsHandle) -> dict[str, torch.Tensor]:
        """Views of the publisher's memory; it cannot be written, and a try ends the process."""
        self.require(handle)
        assert handle.place is not None
        data = self._buffers[handle.place.name][ALIGNMENT : ALIGNMENT + num_bytes(handle.layout)]
        with warnings.catch_warnings():
            # PyTorch says that it cannot keep anyone from writing; the mapping does.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return views(torch.from_numpy(data), handle.layout)

    def require(self, handle: WeightsHandle) -> None:
        """Check that the version is still there.

        Raises:
            WeightsError: it was overwritten.
            TransportError: its publisher is gone.
        """
        assert handle.place is not None
        if handle.place.name not in self._buffers:
            newest = list(self._buffers.items())[-NUM_BUFFERS + 1 :]
            self._buffers = dict(newest) | {handle.place.name: mapped(handle.place)}
        require_stamp(self._buffers[handle.place.name], handle.version)

    def holds(self, tensor: Shaped[torch.Tensor, "..."]) -> bool:
        """Whether a tensor lies in a publisher's memory."""
        begins = {name: buffer.ctypes.data for name, buffer in self._buffers.items()}
        return any(b <= tensor.data_ptr() < b + len(self._buffers[name]) for name, b in begins.items())

    def close(self) -> None:
        """Let go of the memory, but for what tensors still use."""
        self._buffers = {}
