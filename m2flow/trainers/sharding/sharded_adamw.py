# SPDX-License-Identifier: Apache-2.0
"""AdamW on divided parameters: each rank steps its own rows, as if they were all there is."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from m2flow.trainers.optimization.adamw import Optimizer
from m2flow.trainers.sharding import dtensors
from m2flow.trainers.sharding.ranks import Ranks


class ShardedOptimizer(Optimizer):
    """The optimizer of one process on this rank's rows, which share their memory with the divided ``parameters``."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]], ranks: Ranks, **options: Any) -> None:
        self._divided, self._ranks = parameters, ranks
        rows = {
            part: {name: Parameter(divided.detach().to_local()) for name, divided in named.items()}
            for part, named in parameters.items()
        }
        super().__init__(rows, **options)

    def collect(self) -> None:
        """After gradients were added up over the ranks: add those of this rank's rows."""
        for part, named in self._divided.items():
            for name, divided in named.items():
                if isinstance(divided.grad, DTensor):
                    own, grad = self.parameters[part][name], divided.grad.to_local()
                    own.grad = grad if own.grad is None else own.grad.add_(grad)
                    divided.grad = None
        super().collect()

    def _norm(self, gradients: list[Tensor]) -> float:
        square = torch.tensor(super()._norm(gradients) ** 2, dtype=torch.float64)
        return math.sqrt(self._ranks.total(square).item())

    def state(self) -> dict[str, Any]:
        """As that of one process, with parts of tensors (see ``shards``)."""
        return self._changed(super().state(), dtensors.mark)

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``: of this rank of as many ranks, or of one process.

        Raises:
            CheckpointError: it has other parameters or shapes.
        """
        super().load_state(self._changed(state, dtensors.local))

    def _changed(self, state: Mapping[str, Any], change: Callable[..., Any]) -> dict[str, Any]:
        """``state`` with each tensor that has rows changed; what belongs to no parameter stays, to be refused."""

        def changed(held: Mapping[str, Any], divided: DTensor | None) -> dict[str, Any]:
            if divided is None:
                return dict(held)
            return {k: v if isinstance(v, Tensor) and not v.dim() else change(v, like=divided) for k, v in held.items()}

        return {
            part: {name: changed(held, self._divided.get(part, {}).get(name)) for name, held in named.items()}
            for part, named in state.items()
        }
