# SPDX-License-Identifier: Apache-2.0
"""Addition problems: enough of them to train on, and a fixed tenth that training never sees."""

from typing import Literal

import numpy as np
from jaxtyping import Int

Split = Literal["train", "held_out"]

MULTIPLIER = 2654435761
"""2**32 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4): a spreading hash."""
HELD_OUT_FRACTION = 0.1


def pairs(split: Split, *, digits: int = 2, full_width: bool = False) -> Int[np.ndarray, "n 2"]:
    """Both terms of every problem of a split, in a fixed order.

    Args:
        digits: terms go from 0 to ``10**digits - 1``.
        full_width: only terms that have exactly so many digits.
    """
    base = 10**digits
    low = 10 ** (digits - 1) if full_width and digits > 1 else 0
    numbers = np.arange(low, base, dtype=np.uint64)
    terms = np.stack(np.meshgrid(numbers, numbers, indexing="ij"), axis=-1).reshape(-1, 2)
    hashed = (terms[:, 0] * np.uint64(base) + terms[:, 1]) * np.uint64(MULTIPLIER) % np.uint64(2**32)
    held_out = hashed < 2**32 * HELD_OUT_FRACTION
    return terms[held_out == (split == "held_out")].astype(np.int64)


def problems(split: Split, *, digits: int = 2, full_width: bool = False) -> list[tuple[int, int]]:
    """The same as pairs of Python numbers."""
    return [(int(a), int(b)) for a, b in pairs(split, digits=digits, full_width=full_width)]


def question(a: int, b: int) -> str:
    """The text that asks for ``a + b``: ``12+34=``."""
    return f"{a}+{b}="
