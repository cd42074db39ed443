# SPDX-License-Identifier: Apache-2.0
"""Math-Verify's verdict, for notation that is not read here: integrals, sums, limits, differences of sets."""

import math_verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

MAX_CHARS = 400
"""Longer answers get no second opinion: reading them can take minutes."""
_DIGITS = 40
_HOW = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def second_opinion(gold: str, answer: str) -> bool:
    """Whether Math-Verify finds the two equal to 40 digits. It has no time limit of its own: the process has one."""
    if max(len(gold), len(answer)) > MAX_CHARS:
        return False
    # Its own time limits are signals that would replace the process's.
    read = [
        math_verify.parse(f"\\boxed{{{text}}}", _HOW, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore
        for text in (gold, answer)
    ]
    if not all(read):
        return False
    return math_verify.verify(*read, float_rounding=_DIGITS, numeric_precision=_DIGITS, timeout_seconds=None)
