# SPDX-License-Identifier: Apache-2.0
"""From losses of positions to a micro-batch's share of the global loss."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from m2flow.algorithms.base import Totals
from m2flow.algorithms.formulas.masked import row_means, zeroed

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""How the losses of positions become one number; ``norm`` divides by the longest response as configured."""


def aggregate(
    losses: Float[Tensor, "S T"], mask: Bool[Tensor, "S T"], *, totals: Totals, mode: Aggregation
) -> Float[Tensor, ""]:
    """This micro-batch's share: sums over its positions, divided by counts of the global batch."""
    sequences = max(totals.num_sequences, 1)
    if mode == "seq-mean-token-mean":
        return row_means(losses, mask).sum() / sequences
    divisor = {
        "token-mean": max(totals.num_tokens, 1),
        "token-sum": 1,
        "seq-mean-token-sum": sequences,
        "seq-mean-token-sum-norm": sequences * totals.max_tokens,
    }[mode]
    return zeroed(losses, mask).sum() / divisor
