# SPDX-License-Identifier: Apache-2.0
"""Networks of layers one after another, initialised orthogonally."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

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
