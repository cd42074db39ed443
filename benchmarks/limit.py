# SPDX-License-Identifier: Apache-2.0
"""What the machine could do at best: the operations that a result needs, and the rate of its matrix products.

Each weight's operations count only where a result depends on them: 2 a token and weight forwards, 4 more backwards; of
the head only for *predicted* tokens, of a prompt once a group. Products of queries with keys and of weights with values
are counted too. Everything beyond that (softmax, norms, drawing, AdamW, logits made again) is overhead.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

Groups = Sequence[tuple[int, Int[np.ndarray, "responses"]]]
"""Of each group the tokens of its prompt, and of each of its responses."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What operations depend on."""

    body: int
    """Weights of all matrices between embedding and head."""
    head: int
    """Weights of the head."""
    attention: int
    """Width of all heads together, over all layers."""

    @classmethod
    def of(cls, module: Any) -> "Model":
        """Of a Hugging Face causal language model."""
        config = module.config
        head = module.get_output_embeddings().weight.numel()
        layers = (layer for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear))
        width = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        return cls(
            body=sum(layer.weight.numel() for layer in layers) - head,
            head=head,
            attention=width * config.num_attention_heads * config.num_hidden_layers,
        )

    def generation(self, groups: Groups) -> float:
        """Operations of making the responses of ``groups``."""
        return self._forward(groups, first_predictions=1)

    def update(self, groups: Groups) -> float:
        """Operations of one forward and backward pass over ``groups``."""
        return 3 * self._forward(groups, first_predictions=None)

    def _forward(self, groups: Groups, *, first_predictions: int | None) -> float:
        """A prompt's last token predicts the first of every response: once in generation, for all the same."""
        tokens = sum(prompt + (lengths - 1).sum() for prompt, lengths in groups)
        pairs = sum(
            prompt * (prompt + 1) / 2 + ((lengths - 1) * prompt + (lengths - 1) * lengths / 2).sum()
            for prompt, lengths in groups
        )
        predictions = sum((lengths - 1).sum() + (first_predictions or len(lengths)) for _, lengths in groups)
        return float(2 * self.body * tokens + 2 * self.head * predictions + 4 * self.attention * pairs)


@dataclass(frozen=True)
class Spent:
    """Time of something."""

    cpu_s: float
    """Of all threads of this process; other work on the machine hardly counts."""
    wall_s: float


def spent(work: Callable[[], Any]) -> Spent:
    """Time of one call."""
    begin = time.process_time(), time.perf_counter()
    work()
    return Spent(time.process_time() - begin[0], time.perf_counter() - begin[1])


def matmul_rate() -> float:
    """Measured operations per CPU-second of a large float32 matrix product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    spent(lambda: a @ b)
    return 10 * 2 * 2048**3 / spent(lambda: [a @ b for _ in range(10)]).cpu_s


ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of rows at which decoding is measured; between them it is interpolated."""


@torch.inference_mode()
def decoding_cpu_s(module: Any, groups: Groups) -> float:
    """CPU-seconds of the bare products of all decoding steps, each with the rows that have not ended by then.

    With few rows a step takes as long as its weights take to come from memory, which the rate of a large product does
    not show.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]

    def step(rows: int) -> None:
        inputs = {size: torch.ones(rows, size) for size in {layer.in_features for layer in layers}}
        for layer in layers:
            layer(inputs[layer.in_features])

    measured = [min(spent(lambda n=n: step(n)).cpu_s for _ in range(3)) for n in ROWS]
    lengths = np.concatenate([lengths for _, lengths in groups])
    active = [(lengths > made).sum() for made in range(1, lengths.max())]
    return float(np.interp(active, ROWS, measured).sum())
