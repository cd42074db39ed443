# SPDX-License-Identifier: Apache-2.0
"""Networks of layers one after another, alone or several side by side, initialised orthogonally."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Activation = Literal["tanh", "relu", "elu", "silu"]
"""What stands between two layers."""

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def layers(widths: Sequence[int], *, activation: Activation, last_gain: float, rng: torch.Generator) -> nn.Sequential:
    """Linear layers from ``widths[0]`` inputs to ``widths[-1]`` outputs, the last without an activation.

    Weights are orthogonal times sqrt(2), in the last layer times ``last_gain``; biases are zero.
    """
    found: list[nn.Module] = []
    for place, (before, after) in enumerate(pairwise(widths)):
        is_last = place == len(widths) - 2
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, last_gain if is_last else math.sqrt(2), generator=rng)
        nn.init.zeros_(layer.bias)
        found += [layer] if is_last else [layer, _ACTIVATIONS[activation]()]
    return nn.Sequential(*found)


class Ensemble(nn.Module):
    """``num`` networks as ``layers`` makes them, with weights of their own, computed as one.

    Args:
        widths: of the layers, inputs and outputs included.
        num: how many networks.
        activation: what stands between two layers.
        layer_norm: whether what enters an activation is normalised.
        rng: of the first weights.
    """

    def __init__(
        self,
        widths: Sequence[int],
        num: int,
        *,
        activation: Activation,
        layer_norm: bool,
        rng: torch.Generator,
    ) -> None:
        super().__init__()
        made = [layers(widths, activation=activation, last_gain=1.0, rng=rng) for _ in range(num)]
        linear = [[layer for layer in one if isinstance(layer, nn.Linear)] for one in made]
        alike = list(zip(*linear, strict=True))
        self.weights = nn.ParameterList([torch.stack([one.weight.detach().T for one in same]) for same in alike])
        # Flat, for only matrices are decayed.
        self.biases = nn.ParameterList([torch.stack([one.bias.detach() for one in same]).flatten() for same in alike])
        self.gains = nn.ParameterList([torch.ones(num * w) for w in widths[1:-1]] if layer_norm else [])
        self.shifts = nn.ParameterList([torch.zeros(num * w) for w in widths[1:-1]] if layer_norm else [])
        self.num, self.activation, self.layer_norm = num, _ACTIVATIONS[activation](), layer_norm

    def forward(self, x: Float[Tensor, "n inputs"]) -> Float[Tensor, "num n outputs"]:
        """What each says of the same inputs."""
        out = x.expand(self.num, *x.shape)
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = torch.baddbmm(bias.view(self.num, 1, -1), out, weight)
            if place == len(self.weights) - 1:
                break
            if self.layer_norm:
                gain, shift = (own[place].view(self.num, 1, -1) for own in (self.gains, self.shifts))
                out = functional.layer_norm(out, out.shape[-1:]) * gain + shift
            out = self.activation(out)
        return out
