# SPDX-License-Identifier: Apache-2.0
"""The order of an epoch, computed from its number: nothing but the position needs saving."""

import numpy as np
from jaxtyping import Int64

GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection of 64-bit numbers that mixes all bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permutation(num_items: int, *, seed: int, epoch: int) -> Int64[np.ndarray, "num_items"]:
    """An order of ``num_items`` things that depends on the arguments alone, not on a library's generator or version."""
    # Arrays of one element: they wrap around, where numpy's scalars warn.
    key = _mix(_mix(np.array([(seed + GOLDEN) % 2**64], np.uint64)) + np.array([epoch * GOLDEN % 2**64], np.uint64))
    counter = np.arange(1, num_items + 1, dtype=np.uint64) * np.uint64(GOLDEN) + key
    return np.argsort(_mix(counter), kind="stable").astype(np.int64)
