# SPDX-License-Identifier: Apache-2.0
import pytest

from m2flow.rewards.answers.second_opinion import second_opinion


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2}", r"\int_0^1 x dx"),
        ("55", r"\sum_{k=1}^{10} k"),
        ("120", r"\prod_{k=1}^{5} k"),
        ("1", r"\lim_{x\to 0}\frac{\sin x}{x}"),
    ],
)
def test_integrals_sums_products_and_limits_are_worked_out(gold, answer):
    assert second_opinion(gold, answer)


@pytest.mark.parametrize(
    "answer", [r"4 \rightarrow 5", r"\foo 5", r"\xcancel{4} 5", r"5 \approx 5.01", r"\dots 5", "5"]
)
def test_it_is_asked_only_about_notation_that_it_reads_whole(answer):
    assert not second_opinion("5", answer)


def test_a_rounded_value_is_no_integral():
    assert not second_opinion("0.3333333333", r"\int_0^1 x^2 dx")


def test_a_long_answer_gets_none():
    assert not second_opinion("5", r"\int_0^5 dx" + " " * 500)
