# SPDX-License-Identifier: Apache-2.0
"""Addition problems: enough of them to train on, and a fixed tenth that training never sees."""

from typing import Literal

import numpy as np
from jaxtyping import Int64, UInt32

MULTIPLIER = 2654435761
"""2**32 divided by the golden ratio: it spreads numbers (Knuth, The Art of Computer Programming, section 6.4)."""
HELD_OUT_FRACTION = 0.1


def terms(*, digits: int = 2, full_width: bool = False) -> Int64[np.ndarray, "n 2"]:
    """Both terms of every problem, in order.

    Args:
        digits: terms go from 0 to ``10**digits - 1``.
        full_width: only terms that have exactly so many digits.
    """
    low = 10 ** (digits - 1) if full_width and digits > 1 else 0
    numbers = np.arange(low, 10**digits, dtype=np.int64)
    return np.stack(np.meshgrid(numbers, numbers, indexing="ij"), axis=-1).reshape(-1, 2)


def spread(pairs: Int64[np.ndarray, "n 2"], *, digits: int = 2) -> UInt32[np.ndarray, "n"]:
    """A number for each problem, spread evenly over 32 bits; the low ones are held out."""
    numbers = (pairs[:, 0] * 10**digits + pairs[:, 1]).astype(np.uint64)
    return (numbers * np.uint64(MULTIPLIER) % np.uint64(2**32)).astype(np.uint32)


def problems(split: Literal["train", "held_out"]) -> list[tuple[int, int]]:
    """Two-digit problems: both terms of each."""
    pairs = terms()
    held_out = spread(pairs) < 2**32 * HELD_OUT_FRACTION
    return [(int(a), int(b)) for a, b in pairs[held_out == (split == "held_out")]]


def question(a: int, b: int, *, spaced: bool = False) -> str:
    """The text that asks for ``a + b``: ``12+34=``, or ``12 + 34 = ``."""
    return f"{a} + {b} = " if spaced else f"{a}+{b}="
