# SPDX-License-Identifier: Apache-2.0
"""Models whose weights are divided among ranks by FSDP2; each layer is whole only while it is computed.

What uses a model's weights is run as one call of a module around it, ``Divided.call``: everything inside, the output
projection of the chunked log-probs too, finds whole weights, and its backward pass as well.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from m2flow.trainers.sharding.ranks import Ranks

T = TypeVar("T")


class _Root(nn.Module):
    """A model that computes what it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


class Divided:
    """``modules``, divided over ``ranks`` by their layers; one that is named twice is divided once.

    Args:
        dtype: what to compute in; left out, the type of the weights.
        reshard_after_forward: a layer's whole weights are dropped after its forward pass and collected again for its
            backward pass.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        ranks: Ranks,
        *,
        dtype: torch.dtype | None = None,
        reshard_after_forward: bool = True,
    ) -> None:
        self._reshard_after_forward = reshard_after_forward
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        self._roots = {module: _divide(module, ranks, precision=precision) for module in dict.fromkeys(modules)}

    def call(self, module: nn.Module, compute: Callable[[], T]) -> T:
        """``compute()``, in which the parameters of ``module`` are whole while they are used."""
        root, trains = self._roots[module], torch.is_grad_enabled()
        # Without a backward pass to come nothing would drop whole weights, and they would be stale after a step.
        root.set_reshard_after_forward(self._reshard_after_forward or not trains)
        root.set_reshard_after_forward(not trains, recurse=False)
        return cast(nn.Module, root)(compute)

    def before_backward(self, *, reduces: bool, reshards: bool) -> None:
        """Whether the next backward pass adds gradients up over the ranks, and drops whole weights when done."""
        for root in self._roots.values():
            root.set_requires_gradient_sync(reduces)
            root.set_is_last_backward(reduces)
            root.set_reshard_after_backward(reshards)


def _divide(module: nn.Module, ranks: Ranks, *, precision: MixedPrecisionPolicy) -> FSDPModule:
    for layer in _layers(module):
        fully_shard(layer, mesh=ranks.mesh, mp_policy=precision)
    whole = _Root(module)
    root = fully_shard(whole, mesh=ranks.mesh, mp_policy=precision)
    # Losses are shares of the global one: their gradients are added up, not averaged.
    for part in whole.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return root


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost module lists: what a deep model repeats."""
    for child in module.children():
        yield from child if isinstance(child, nn.ModuleList) else _layers(child)
