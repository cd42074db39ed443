# SPDX-License-Identifier: Apache-2.0
import time
from contextlib import suppress

import pytest

from m2flow.rewards.answers.lexing import MAX_DEPTH, Reading, tokenize
from m2flow.rewards.answers.tree import Malformed


def texts(answer: str, **reading: bool) -> list[str]:
    """Its tokens, as they are written."""
    return [token.text for token in tokenize(answer, Reading(**reading))]


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ("1,234", ["1234"]),
        ("1,2345", ["1", ",", "2345"]),
        ("(1,234)", ["(", "1", ",", "234", ")"]),
        ("1{,}234", ["1234"]),
        ("1 234 567", ["1234567"]),
        ("3 125/200", ["3", "125", "/", "200"]),
        ("6.02e23", ["6.02e23"]),
        ("2e+1", ["2", "e", "+", "1"]),
        (r"\left( x \right)", ["(", "x", ")"]),
        (r"5\text{ cm}", ["5", "cm"]),
        (r"\text{3 or 4}", ["3", ";", "4"]),
        ("x²", ["x", "^", "{", "2", "}"]),
        ("½", [r"\frac", "{", "1", "}", "{", "2", "}"]),
        ("$5$", ["5"]),
        ("$5", ["$", "5"]),
        (r"\$5", ["$", "5"]),
        ("3**4", ["3", "^", "4"]),
        ("xy", ["x", "y"]),
        ("Monday", ["Monday"]),
        ("5cm", ["5", "cm"]),
        ("sinx", [r"\sin", "x"]),
        ("30°", ["30", "^", r"\circ"]),
        (r"1 \\ 2", ["1", r"\\", "2"]),
        (r"1 \\[2pt] 2", ["1", r"\\", "2"]),
        ("3 x 10^8", ["3", r"\cdot", "10", "^", "8"]),
    ],
)
def test_an_answer_falls_into_its_tokens(answer, tokens):
    assert texts(answer) == tokens


def test_readings_differ_where_notation_does():
    assert texts("1,234", thousands=False) == ["1", ",", "234"]
    letter, unit = tokenize("5 m", Reading())[1], tokenize("5 m", Reading(unit_letters=True))[1]
    assert (letter.kind, unit.kind) == ("letter", "text")


@pytest.mark.parametrize(
    "answer", ["(", ")(", "}{", "0xff", "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), "1" * 10_001]
)
def test_what_cannot_be_mathematics_is_malformed(answer):
    with pytest.raises(Malformed):
        tokenize(answer, Reading())


@pytest.mark.parametrize(
    "piece", ["a", "1,", " ", r"\ ", r"\text{", "{,}", "1 234", "$", "ft.", "^{", "\\", "² ", "'", "½"]
)
def test_time_is_linear_in_the_text(piece):
    start = time.process_time()
    with suppress(Malformed):
        tokenize(piece * (10_000 // len(piece)), Reading())
    assert time.process_time() - start < 0.5
