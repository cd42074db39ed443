# SPDX-License-Identifier: Apache-2.0
"""Keys and values of everything that is being generated, and the two ways to attend with them.

A row of the cache belongs to one active sample. Rows are dense: when a sample ends, the last row moves into its place,
so that no step computes for samples that are finished.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from m2flow.policies.language.attention import Layout

BLOCK = 64
"""Tokens by which rows grow."""

KeyValues = list[tuple[Tensor, Tensor]]
"""Per layer, keys and values of one prompt: [kv_heads, tokens, dim] each."""


class Prefill(Layout):
    """Whole prompts one after another in a packed row, each causal and alone; keeps their keys and values."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.prompts: list[KeyValues] = [[] for _ in lengths]

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        *,
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Causal attention inside each prompt."""
        out = []
        parts = zip(self.prompts, *(x.split(self.lengths, dim=1) for x in (query, key, value)), strict=True)
        for prompt, q, k, v in parts:
            prompt.append((k, v))
            attended = functional.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, scale=scaling, enable_gqa=True
            )
            out.append(attended[0])
        return torch.cat(out, dim=1).transpose(0, 1)


class Decode(Layout):
    """One new token for each row of the cache."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.lengths = torch.zeros(num_rows, dtype=torch.long)
        """[rows] tokens that each row holds."""
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._active = 0
        self._visible: Tensor | None = None

    def admit(self, row: int, prompt: KeyValues) -> None:
        """Start ``row`` with a prompt's keys and values."""
        if not self._keys:
            self._keys = [key.new_zeros(self.num_rows, key.shape[0], 0, key.shape[2]) for key, _ in prompt]
            self._values = [torch.zeros_like(keys) for keys in self._keys]
        num_tokens = prompt[0][0].shape[1]
        self._reserve(num_tokens + 1)
        for layer, (key, value) in enumerate(prompt):
            self._keys[layer][row, :, :num_tokens] = key
            self._values[layer][row, :, :num_tokens] = value
        self.lengths[row] = num_tokens

    def move(self, source: int, target: int) -> None:
        """Put row ``source`` in the place of ``target``."""
        num_tokens = int(self.lengths[source])
        for tensors in (*self._keys, *self._values):
            tensors[target, :, :num_tokens] = tensors[source, :, :num_tokens]
        self.lengths[target] = num_tokens

    def begin(self, num_active: int) -> Int[Tensor, "active"]:
        """Make room for one token in each of the first ``num_active`` rows; returns the tokens' positions."""
        positions = self.lengths[:num_active].clone()
        longest = int(positions.max()) + 1
        self._reserve(longest)
        self._active = num_active
        visible = torch.arange(longest) <= positions[:, None]
        self._visible = visible[:, None, None, :].to(self._keys[0].device)
        self.lengths[:num_active] += 1
        return positions

    def _reserve(self, num_tokens: int) -> None:
        missing = num_tokens - self._keys[0].shape[2]
        if missing <= 0:
            return
        more = -(-missing // BLOCK) * BLOCK
        self._keys = [functional.pad(keys, (0, 0, 0, more)) for keys in self._keys]
        self._values = [functional.pad(values, (0, 0, 0, more)) for values in self._values]

    def attend(
        self,
        layer: int,
        query: Float[Tensor, "heads tokens dim"],
        key: Float[Tensor, "kv_heads tokens dim"],
        value: Float[Tensor, "kv_heads tokens dim"],
        *,
        scaling: float,
    ) -> Float[Tensor, "tokens heads dim"]:
        """Write each row's new key and value, then attend to all that the row holds.

        The query heads that share a key head are taken as several queries of that head, so keys are never repeated.
        """
        assert self._visible is not None, "call begin before a step"
        heads, active, dim = query.shape
        rows = torch.arange(active, device=key.device)
        places = (self.lengths[:active] - 1).to(key.device)
        keys, values = self._keys[layer], self._values[layer]
        keys[rows, :, places] = key.transpose(0, 1)
        values[rows, :, places] = value.transpose(0, 1)
        longest = self._visible.shape[-1]
        grouped = query.transpose(0, 1).reshape(active, key.shape[0], heads // key.shape[0], dim)
        out = functional.scaled_dot_product_attention(
            grouped, keys[:active, :, :longest], values[:active, :, :longest], attn_mask=self._visible, scale=scaling
        )
        return out.reshape(active, heads, dim)
