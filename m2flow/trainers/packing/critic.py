# SPDX-License-Identifier: Apache-2.0
"""The value function of a language policy: a copy of its body with one number as its output."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from m2flow.errors import CheckpointError
from m2flow.trainers.packing.layout import PackedRow


class Critic:
    """Values of the states before each response token.

    The body starts as a copy of the policy's present weights (with LoRA: the same frozen base and adapters of its own),
    the head at zero, so that the first values are 0 and the first advantages those of the rewards alone.
    """

    def __init__(self, policy: Any) -> None:
        self.body = copy.deepcopy(policy)
        width, weight = policy.head_weight.shape[1], policy.head_weight
        self.head = nn.Linear(width, 1, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.module = nn.ModuleDict({"body": self.body.module, "head": self.head})

    def trainable(self) -> dict[str, nn.Parameter]:
        """The body's trainable parameters that a value depends on, and the head's."""
        tied = self.body.head_weight is self.body.module.get_input_embeddings().weight
        own = {} if tied else {id(self.body.head_weight)}
        body = {k: p for k, p in self.body.trainable().items() if id(p) not in own}
        return {**body, **{f"value_head.{k}": p for k, p in self.head.named_parameters()}}

    def values(self, row: PackedRow) -> Float[Tensor, "predictions"]:
        """In float32."""
        hidden = self.body.hidden(row.token_ids, row.positions, layout=row.layout)[row.predicting]
        return self.head(hidden)[:, 0].to(torch.float32, copy=True)

    def state(self) -> dict[str, Tensor]:
        """What training changes."""
        return {k: p.detach() for k, p in self.trainable().items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned.

        Raises:
            CheckpointError: it is of another critic, or of a learner that had none.
        """
        own = self.trainable()
        if {k: p.shape for k, p in own.items()} != {k: v.shape for k, v in state.items()}:
            raise CheckpointError(
                f"the checkpoint's critic has {len(state)} tensors, expected the {len(own)} of this model's: resume "
                "with the model and the algorithm that the run began with"
            )
        for name, parameter in own.items():
            parameter.copy_(state[name])
