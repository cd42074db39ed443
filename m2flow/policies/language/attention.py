# SPDX-License-Identifier: Apache-2.0
"""The attention of packed batches: one function registered with transformers, which asks the batch how to attend.

Every model forward of ours has shape [1, tokens]: many sequences lie one after another in a single row, without
padding. What may see what is decided by a ``Layout`` (packed training, generation with a cache), handed to the model as
a keyword.
"""

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from m2flow.errors import ModelError

NAME = "m2flow_packed"


class Layout(ABC):
    """Where sequences lie in a packed row, and so which token attends to which."""

    @abstractmethod
    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Attention of layer number ``layer``; query heads are in groups of ``heads // kv_heads`` per key head."""


def attention(
    module: nn.Module,
    query: Float[Tensor, "1 heads tokens dim"],
    *rest: Float[Tensor, "1 kv_heads tokens dim"] | None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 tokens heads dim"], None]:
    """The function that transformers calls in every layer, by position: ``rest`` is key, value and no mask.

    Raises:
        ModelError: the model asks for something that packed attention does not do (a sliding window, soft-capping,
            attention sinks, dropout), which would otherwise be ignored.
    """
    key, value, _ = rest
    assert key is not None and value is not None
    layout, scaling = kwargs.get("layout"), kwargs.get("scaling")
    if layout is None:
        raise ModelError("this model only runs packed batches: call Llm.hidden, not the module itself")
    asked = [k for k in ("sliding_window", "softcap", "s_aux") if kwargs.get(k) is not None]
    if kwargs.get("dropout", 0.0):
        asked.append("dropout")
    if asked:
        raise ModelError(f"{type(module).__name__} uses {', '.join(asked)}, which packed attention does not support")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = layout.attend(module.layer_idx, query[0], key=key[0], value=value[0], scaling=scaling)
    return out.unsqueeze(0), None


def registered() -> str:
    """``NAME``, made known to transformers; only the loading of a model waits for that import."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    return NAME
