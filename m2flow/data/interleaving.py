# SPDX-License-Identifier: Apache-2.0
"""What a mixture is made of, and the order of its items."""

from math import ceil

import numpy as np
from jaxtyping import Int64
from pydantic import Field

from m2flow.config import Config
from m2flow.registry import SourceConfig


class PartConfig(Config):
    """One part of a mixture."""

    source: SourceConfig
    """Where its prompts come from."""
    weight: float = Field(default=1.0, gt=0)
    """Its share, relative to the other parts."""


def interleave(lengths: list[int], weights: list[float]) -> Int64[np.ndarray, "n 2"]:
    """Part and number of each item; numbers run on where a part begins anew."""
    turns = max(length / weight for length, weight in zip(lengths, weights, strict=True))
    # Rounded up, lest 3 * (1 / 3) loses an item to the last digit.
    counts = [ceil(round(turns * weight, 6)) for weight in weights]
    items = np.array([(part, number) for part, count in enumerate(counts) for number in range(count)], np.int64)
    when = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    return items[np.argsort(when, kind="stable")]
