# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m2flow.rewards.answers.equality import equal, minus, proportional, same_sign, symbols
from m2flow.rewards.answers.grammar import Grammar
from m2flow.rewards.answers.lexing import Reading, tokenize
from m2flow.rewards.answers.tree import Node, TooLarge


def node(text: str) -> Node:
    """The expression that ``text`` spells."""
    return Grammar(tokenize(text, Reading())).sum()


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (r"\sqrt{2}\sqrt{2}", "2", True),
        (r"\sqrt{2}", "1." + "4142135623730950488016887242096980785696718753769480731766797379907324784621", False),
        (r"\pi^{50}", r"\pi^{50}+10^{-30}", False),
        (r"10^{50}\pi", r"10^{50}\pi+1", False),
        (r"10^{-50}\pi", r"10^{-50}\pi+10^{-100}", False),
        (r"\sqrt{10^{40}+1}", "10^{20}", False),
        (r"(\sqrt{3}+\sqrt{2})(\sqrt{3}-\sqrt{2})", "1", True),
        (r"\sin^2 x+\cos^2 x", "1", True),
        (r"e^{i\pi}+1", "0", True),
        (r"x^{2^{40}}-x^{2^{40}}+6", "6", True),
        (r"\ln(x-100)", r"\ln(x-100)+1", False),
        (r"\ln(x-100)", r"\ln(-100+x)", True),
        (r"\frac{x}{x}", "1", True),
        (r"\frac{x-x}{x-x}", "1", False),
        ("a+b", "a+c", False),
        (r"\infty", r"2^{\infty}", False),
    ],
)
def test_expressions_are_equal_only_where_their_values_are(a, b, same):
    assert equal(node(a), node(b)) is same
    assert equal(node(b), node(a)) is same


def test_a_number_too_large_to_work_out_is_said_to_be():
    with pytest.raises(TooLarge):
        equal(node(r"9^{9^{9^{9}}}"), node("5"))


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_a_product_of_roots_equals_its_expansion(roots):
    factors = "".join(f"(x-({root}))" for root in roots)
    coefficients = [1]
    for root in roots:
        coefficients = [a - root * b for a, b in zip([*coefficients, 0], [0, *coefficients], strict=True)]
    degree = len(roots)
    expansion = "+".join(f"({c})x^{{{degree - k}}}" for k, c in enumerate(coefficients[:-1])) + f"+({coefficients[-1]})"
    assert equal(node(factors), node(expansion))
    assert not equal(node(factors), node(f"{expansion}+1"))


def test_equations_are_one_when_a_constant_factor_lies_between_them():
    assert proportional(node("x+y-2"), node("2x+2y-4"))
    assert proportional(node(r"\sqrt{x}-y"), node(r"3y-3\sqrt{x}"))
    assert not proportional(node("x+y-2"), node("x+y-3"))
    assert not proportional(node("x-5"), node("y-5"))
    assert not proportional(node("x-x"), node("x-x"))
    assert not proportional(node(r"\sqrt{x}-y"), node(r"\sqrt{x}+y"))


def test_the_sign_of_the_factor_tells_inequalities_apart():
    assert same_sign(node("x-1"), node("2x-2"))
    assert not same_sign(node("x-1"), node("2-2x"))


def test_symbols_and_differences():
    assert symbols(node("x_1+2y+e")) == {"x_1", "y"}
    assert equal(minus(node("x"), node("y")), node("x-y"))
