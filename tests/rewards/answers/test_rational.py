# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest

from m2flow.rewards.answers.grammar import Grammar
from m2flow.rewards.answers.lexing import Reading, tokenize
from m2flow.rewards.answers.rational import NotRational, Residues, Undefined, evaluate, exact
from m2flow.rewards.answers.tree import Node, TooLarge


def node(text: str) -> Node:
    """The expression that ``text`` spells."""
    return Grammar(tokenize(text, Reading())).sum()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^{-2}", Fraction(1, 4)),
        ("1/2/2", Fraction(1, 4)),
        ("6/2(1+2)", 9),
        (r"\frac12", Fraction(1, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"3\frac{7}{2}", Fraction(21, 2)),
        ("3 1/2", Fraction(7, 2)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"12.5\%", Fraction(1, 8)),
        (r"\sqrt{\frac{9}{4}}", Fraction(3, 2)),
        (r"\sqrt[3]{-27}", -3),
        ("8^{2/3}", 4),
        ("5!", 120),
        (r"\binom{5}{2}", 10),
        ("|-3|", 3),
        (r"\lfloor -1.5 \rfloor", -2),
        (r"\gcd(12,18)", 6),
        (r"\max(1,2,3)", 3),
        ("1_2", None),
        ("101_2", 5),
        ("1e3", 1000),
        ("(-1)^{10^{30}}", 1),
        ("1^{10^{30}}", 1),
    ],
)
def test_rational_expressions_have_their_exact_value(text, value):
    assert exact(node(text)) == (1 if value is None else value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (r"\pi", NotRational),
        ("x", NotRational),
        (r"\sqrt{2}", NotRational),
        (r"\sin 0", NotRational),
        ("1/0", Undefined),
        ("0^0", Undefined),
        ("9^{9^9}", TooLarge),
        ("3000!", TooLarge),
        ("10^{100000}", TooLarge),
    ],
)
def test_what_has_no_such_value_says_why(text, error):
    with pytest.raises(error):
        exact(node(text))


def test_residues_agree_with_fractions_modulo_the_prime():
    # 22/7 mod 101: 7 * 29 = 203 = 1, so it is 22 * 29 = 638 = 32.
    assert evaluate(node("22/7"), Residues(101, 0)) == 32
    assert evaluate(node("2^{100}"), Residues(101, 0)) == 1


def test_a_power_tower_is_evaluated_modulo_a_prime_without_being_written_out():
    field = Residues(2**127 - 1, 0)
    assert evaluate(node("10^{10^{10}}"), field) == pow(10, 10**10, 2**127 - 1)


def test_a_variable_keeps_its_value_at_a_point_and_changes_it_between_points():
    a, b = Residues(2**127 - 1, 0), Residues(2**127 - 1, 1)
    assert a.symbol("x") == a.symbol("x") != a.symbol("y")
    assert a.symbol("x") != b.symbol("x")
