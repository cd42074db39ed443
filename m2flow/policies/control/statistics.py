# SPDX-License-Identifier: Apache-2.0
"""Running mean and variance of observations."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Normalizer(nn.Module):
    """(x - mean) / sqrt(variance + 1e-8), kept within 10, by statistics over all states that were ever seen.

    They are buffers: they are saved, and go to other processes, with the weights. Until the first states they change
    nothing.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Float[Tensor, "*leading width"]) -> Float[Tensor, "*leading width"]:
        """Normalised."""
        mean, deviation = self.mean.float(), (self.variance + 1e-8).sqrt().float()
        return ((x - mean) / deviation).clamp(-10, 10)

    @torch.no_grad()
    def observe(self, x: Float[Tensor, "n width"]) -> None:
        """Merge the moments of ``x`` (Chan, Golub and LeVeque 1979), in double precision."""
        if not len(x):
            return
        new, total = x.double(), self.count + len(x)
        mean, variance = new.mean(0), new.var(0, correction=0)
        gap, share = mean - self.mean, len(x) / total
        if self.count:
            variance = self.variance * (1 - share) + variance * share + gap.square() * share * (1 - share)
        self.variance.copy_(variance)
        self.mean.add_(gap * share)
        self.count.copy_(total)
