# SPDX-License-Identifier: Apache-2.0
"""Does a model mean packed what it means alone? Asked once, when it is loaded.

The learner and the engines call the decoder on packed rows and apply the output projection themselves. That is right
only for models that attend through ``attention``, keep nothing else between tokens, and do nothing to the logits.
Others (scaled or soft-capped logits, recurrent layers, position biases) would give wrong numbers without an error, so
the model itself is asked, not a list of names.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from m2flow.errors import ModelError
from m2flow.policies.language import attention

LENGTHS = (3, 5)
"""Tokens of the sequences in the probe."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Allowed difference between packed and eager logits, as a part of the largest logit's distance from their mean."""


class CausalLayout(attention.Layout):
    """Whole sequences one after another, each causal and alone: the simplest layout, and slow."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self.layers: set[int] = set()
        """Numbers of the layers that attended."""

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        *,
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Causal attention inside each sequence."""
        self.layers.add(layer)
        parts = zip(*(x.split(self.lengths, dim=1) for x in (query, key, value)), strict=True)
        out = [
            functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
            for q, k, v in parts
        ]
        return torch.cat(out, dim=1).transpose(0, 1)


def decode(
    module: Any, token_ids: Int[Tensor, "tokens"], *, positions: Int[Tensor, "tokens"], layout: attention.Layout
) -> Float[Tensor, "tokens width"]:
    """Hidden states of one packed row, before the output projection."""
    out = module.get_decoder()(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        attention_mask=None,
        use_cache=False,
        layout=layout,
    )
    return out.last_hidden_state[0]


@torch.no_grad()
def require_packable(module: Any) -> None:
    """Check that packed hidden states and the bare output projection give the model's own logits.

    Raises:
        ModelError: they do not; the message says in what way.
    """
    _require_plain_head(module)
    tokens = torch.arange(sum(LENGTHS)) * 7 % min(module.config.vocab_size, 97)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])
    layout = CausalLayout(LENGTHS)
    packed = decode(module, tokens, positions=positions, layout=layout)
    _require_attention_everywhere(module, layout)
    _require_nothing_around_head(module, tokens[-LENGTHS[1] :])
    _require_same_alone(module, tokens[-LENGTHS[1] :], packed=packed[-LENGTHS[1] :])


def _require_plain_head(module: Any) -> None:
    head = module.get_output_embeddings()
    if type(head) is not nn.Linear or head.bias is not None:
        raise ModelError(
            f"the output projection of {type(module).__name__} is {head}, expected a linear layer without bias: this "
            "model is not supported"
        )


def _require_attention_everywhere(module: Any, layout: CausalLayout) -> None:
    number = module.config.num_hidden_layers
    if layout.layers != set(range(number)):
        raise ModelError(
            f"{len(layout.layers)} of {number} layers of {type(module).__name__} use the attention that packing "
            "works through: models with other layers (recurrent, or with attention code of their own) are not supported"
        )


def _require_nothing_around_head(module: Any, tokens: Tensor) -> None:
    """Large logits in the head's place must come out as they are, and the head must be given the hidden states."""
    layout, positions = CausalLayout((len(tokens),)), torch.arange(len(tokens))
    hidden = decode(module, tokens, positions=positions, layout=layout)
    head = module.get_output_embeddings()
    planted = torch.linspace(-200, 200, head.out_features, dtype=head.weight.dtype).expand(1, len(tokens), -1)
    seen: list[Tensor] = []

    def plant(_: nn.Module, *given: Any) -> Tensor:
        seen.append(given[0][0])
        return planted

    hook = head.register_forward_hook(plant)
    try:
        out = module(tokens[None], position_ids=positions[None], use_cache=False, layout=layout).logits
    finally:
        hook.remove()
    if not (torch.equal(out, planted) and torch.equal(seen[0][0], hidden)):
        raise ModelError(
            f"{type(module).__name__} changes its hidden states or logits around the output projection (a logit "
            "scale or soft-capping), which chunked log-probs would leave out: this model is not supported"
        )


def _require_same_alone(module: Any, tokens: Tensor, *, packed: Float[Tensor, "tokens width"]) -> None:
    module.set_attn_implementation("eager")
    try:
        alone = module(tokens[None], use_cache=False).logits[0].float()
    finally:
        module.set_attn_implementation(attention.NAME)
    logits = functional.linear(packed, module.get_output_embeddings().weight).float()
    spread = (alone - alone.mean()).abs().max()
    if not (logits - alone).abs().max() <= TOLERANCE[packed.dtype] * spread:
        raise ModelError(
            f"{type(module).__name__} gives other logits packed than alone (off by "
            f"{(logits - alone).abs().max():.2g}): it keeps more between tokens than attention does, or biases "
            "attention by position. This model is not supported"
        )
