# SPDX-License-Identifier: Apache-2.0
"""Math-Verify's verdict, for notation that is not read here: integrals, sums, limits, differences of sets."""

import re

import math_verify
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

from m2flow.rewards.answers.spelling import words_of

MAX_CHARS = 400
"""Longer answers get no second opinion: reading them can take minutes."""
_DIGITS = 40
_ADVANCED = words_of("int iint oint sum prod lim setminus backslash cap det")
_PLAIN = words_of(
    "frac dfrac tfrac sqrt binom cdot times div pm left right infty to rightarrow mathbb text mathrm pi theta alpha "
    "beta gamma lambda mu sigma phi omega sin cos tan cot sec csc arcsin arccos arctan ln log exp cup in le leq ge geq "
    "lt gt quad limits displaystyle begin end"
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_HOW = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def second_opinion(gold: str, answer: str) -> bool:
    """Whether Math-Verify finds the two equal to 40 digits. It has no time limit of its own: the process has one."""
    # It skips commands that it does not know, and would find a 5 in "4 \\rightarrow 5": it is asked only about these.
    used = set(_COMMAND.findall(gold + answer))
    if max(len(gold), len(answer)) > MAX_CHARS or not used & _ADVANCED or used - _ADVANCED - _PLAIN:
        return False
    # Its own time limits are signals that would replace the process's.
    read = [
        math_verify.parse(f"\\boxed{{{text}}}", _HOW, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore
        for text in (gold, answer)
    ]
    if not all(read):
        return False
    return math_verify.verify(*read, float_rounding=_DIGITS, numeric_precision=_DIGITS, timeout_seconds=None)
