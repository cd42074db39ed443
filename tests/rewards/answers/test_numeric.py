# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from m2flow.rewards.answers.grammar import Grammar
from m2flow.rewards.answers.lexing import Reading, tokenize
from m2flow.rewards.answers.numeric import POINTS, literal_digits, real_sign, values
from m2flow.rewards.answers.rational import NotRational, Undefined
from m2flow.rewards.answers.tree import Node, TooLarge


def node(text: str) -> Node:
    """The expression that ``text`` spells."""
    return Grammar(tokenize(text, Reading())).sum()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\pi", math.pi),
        ("e", math.e),
        (r"\sqrt{2}", math.sqrt(2)),
        (r"\sin 1", math.sin(1)),
        (r"\cos 60^\circ", 0.5),
        (r"\tan(1)", math.tan(1)),
        (r"\cot 1", 1 / math.tan(1)),
        (r"\sec 1", 1 / math.cos(1)),
        (r"\csc 1", 1 / math.sin(1)),
        (r"\arcsin 0.5", math.asin(0.5)),
        (r"\sin^{-1} 0.5", math.asin(0.5)),
        (r"\arccos 0.5", math.acos(0.5)),
        (r"\arctan 2", math.atan(2)),
        (r"\sinh 1", math.sinh(1)),
        (r"\cosh 1", math.cosh(1)),
        (r"\tanh 1", math.tanh(1)),
        (r"\exp 2", math.exp(2)),
        (r"\ln 3", math.log(3)),
        (r"\log 1000", 3),
        (r"\log_2 10", math.log2(10)),
        (r"\lg 5", math.log10(5)),
        (r"\sqrt[3]{-2}", -(2 ** (1 / 3))),
        (r"\lfloor\pi\rfloor", 3),
        (r"\lceil\pi\rceil", 4),
        (r"|-\pi|", math.pi),
        ("0.5!", math.gamma(1.5)),
        (r"\max(\pi,e)", math.pi),
        (r"\min(\pi,e)", math.e),
    ],
)
def test_functions_have_the_values_of_the_standard_library(text, value):
    (found,), _, is_complex = values((node(text),), 0)
    assert float(found.real) == pytest.approx(value, rel=1e-14)
    assert not is_complex


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (r"\ln 0", Undefined),
        (r"\frac{1}{\pi-\pi}", Undefined),
        (r"(-1)!+\pi", Undefined),
        (r"\gcd(\pi,2)", NotRational),
        (r"e^{e^{e^{e}}}", TooLarge),
        (r"\sin(10^{20})", TooLarge),
        (r"\pi^{10^{9}}", TooLarge),
        (r"\exp(10^{9})", TooLarge),
        (r"(1000\pi)!", TooLarge),
        (r"\pi+10^{-4000}", TooLarge),
    ],
)
def test_what_has_no_value_or_too_large_a_one_says_so(text, error):
    with pytest.raises(error):
        values((node(text),), 0)


def test_leaving_the_reals_is_noted():
    assert values((node(r"\sqrt{-2}"),), 0)[2]
    assert real_sign(node(r"\sqrt{-2}"), 0) is None


def test_signs_at_points_follow_the_ranges_of_variables():
    assert [real_sign(node("x-3.5"), point) for point in (0, 3, len(POINTS) - 1)] == [-1, 1, -1]
    assert real_sign(node(r"\sqrt{2}^2-2"), 0) == 0


def test_long_literals_ask_for_more_digits():
    assert literal_digits(node("5x+1")) == 0
    assert literal_digits(node("0." + "3" * 100)) > 150
