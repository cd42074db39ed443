# SPDX-License-Identifier: Apache-2.0
"""The frozen policy that a KL divergence is measured against."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from m2flow.policies.language.attention import Layout


class Reference:
    """``hidden``, ``head_weight`` and ``logits`` of a policy, without gradient and without a way to train it."""

    def __init__(self, policy: Any, scope: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._policy = policy
        self._scope = scope

    @property
    def module(self) -> Any:
        """The model; with adapters the trained policy's own."""
        return self._policy.module

    @torch.no_grad()
    def hidden(
        self, token_ids: Int[Tensor, "tokens"], positions: Int[Tensor, "tokens"], *, layout: Layout
    ) -> Float[Tensor, "tokens width"]:
        """Hidden states of one packed row, before the output projection."""
        with self._scope():
            return self._policy.hidden(token_ids, positions, layout=layout)

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary width"]:
        """The output projection."""
        return self._policy.head_weight.detach()

    def logits(self, hidden: Float[Tensor, "tokens width"]) -> Float[Tensor, "tokens vocabulary"]:
        """Logits of hidden states."""
        return torch.nn.functional.linear(hidden, self.head_weight)
