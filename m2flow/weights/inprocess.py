# SPDX-License-Identifier: Apache-2.0
"""Weights in the process of their learner: the very tensors."""

import torch

from m2flow.weights.base import WeightsHandle
from m2flow.weights.publisher import Publisher


class InProcess:
    """The route without a copy."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def receive(self, handle: WeightsHandle) -> dict[str, torch.Tensor]:
        """The published tensors."""
        return dict(self._publisher.state(handle.version))
