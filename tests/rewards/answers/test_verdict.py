# SPDX-License-Identifier: Apache-2.0
import json
import sys
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from formula_cases import CASES as FORMULAS
from hostile_cases import CASES as HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st
from number_cases import CASES as NUMBERS
from shape_cases import CASES as SHAPES

from m2flow.rewards.answers.finals import extract_final, gold_final
from m2flow.rewards.answers.tree import Unfamiliar
from m2flow.rewards.answers.verdict import same_answer, same_spelling, same_text
from m2flow.rewards.answers.worker import judge

CONFORMANCE = Path(__file__).parents[2] / "conformance" / "math" / "math_answers.json"
ALL = {**NUMBERS, **FORMULAS, **SHAPES, **HOSTILE}
PIECES = r"""
    \frac \sqrt { } ( ) [ ] \{ \} 1 2 10 x y n + - * / ^ _ = < \le , ; : | ! % \pi \infty e i \sin \log_2 \text{cm} or
    and 5 0.5 . $ \cup \in \pm \begin{pmatrix} \end{pmatrix} & \\ \circ \binom \lfloor \rfloor ' ° ² ½ \overline \over
    \max \$ million per square \mathbb{R} \left \right 1e9 9**9 \int
"""
pieces = st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=25).map("".join)
patient = settings(deadline=None)
numbers = st.fractions(min_value=-1000, max_value=1000, max_denominator=400)


@pytest.fixture(autouse=True)
def _room_to_recurse():
    """As much as the processes have that judge."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


def verdict(gold: str, answer: str) -> bool:
    """As a completion is judged, without limits of time and memory."""
    final, wanted = extract_final(answer, "boxed"), gold_final(gold)
    return final is not None and wanted is not None and judge(wanted, final)


@pytest.mark.parametrize("category", ALL)
def test_every_answer_of_the_category_is_judged_as_by_hand(category):
    wrong = [(gold, answer) for gold, answer, right in ALL[category] if verdict(gold, answer) is not right]
    assert wrong == []


def test_a_hundred_and_fifty_cases_and_more_stand_beside_the_published_ones():
    published = {(c["gold"], c["answer"]) for c in json.loads(CONFORMANCE.read_text(encoding="utf-8"))["cases"]}
    own = {(gold, answer) for cases in ALL.values() for gold, answer, _ in cases}
    assert len(own - published) > 600


@patient
@given(numbers)
def test_a_fraction_equals_itself_in_every_spelling(value):
    top, bottom = value.numerator, value.denominator
    whole, rest = divmod(abs(top), bottom)
    sign = "-" if top < 0 else ""
    spellings = [
        f"{top}/{bottom}",
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"\dfrac{{{-top}}}{{{-bottom}}}",
        rf"\frac{{{3 * top}}}{{{3 * bottom}}}",
        rf"x = {top}/{bottom}",
        rf"{value * 100}\%" if (value * 100).denominator == 1 else f"{top}/{bottom}",
        rf"{sign}{whole}\frac{{{rest}}}{{{bottom}}}" if rest else str(top),
        f"{sign}{whole} {rest}/{bottom}" if rest else f"{top}.0",
    ]
    assert [text for text in spellings if not same_answer(f"{top}/{bottom}", text)] == []


@patient
@given(numbers, numbers)
def test_two_fractions_are_equal_only_if_their_values_are(a, b):
    assert same_answer(f"{a}", rf"\frac{{{b.numerator}}}{{{b.denominator}}}") is (a == b)


@patient
@given(numbers, st.integers(1, 30))
def test_a_decimal_equals_a_fraction_only_where_nothing_was_rounded(value, places):
    scaled = round(value * 10**places)
    sign, digits = ("-" if scaled < 0 else ""), f"{abs(scaled):0{places + 1}d}"
    rounded = f"{sign}{digits[:-places]}.{digits[-places:]}"
    assert same_answer(str(value), rounded) is (Fraction(scaled, 10**places) == value)


@patient
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_order_counts_in_tuples_and_not_in_sets(items, rng):
    mixed = items[:]
    rng.shuffle(mixed)
    a, b = (", ".join(map(str, row)) for row in (items, mixed))
    assert same_answer(rf"\{{{a}\}}", rf"\{{{b}\}}")
    assert same_answer(f"({a})", f"({b})") is (items == mixed)


@patient
@given(st.integers(1, 10**15))
def test_thousands_separators_change_nothing(value):
    grouped = f"{value:,}"
    for mark in (",", "{,}", r"\,", r",\!", " "):
        assert same_answer(str(value), grouped.replace(",", mark))


@settings(max_examples=300, deadline=None)
@given(pieces, pieces)
def test_no_soup_of_notation_breaks_the_reader(gold, answer):
    for pair in ((gold, answer), ("5", answer), (answer, answer)):
        with suppress(Unfamiliar):
            assert same_answer(*pair) in (True, False)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_no_text_at_all_breaks_the_reader_or_equals_a_number_that_it_does_not_hold(text):
    try:
        right = same_answer("123454321", text)
    except Unfamiliar:
        right = False
    assert not right


def test_notation_that_is_not_read_is_said_to_be():
    with pytest.raises(Unfamiliar):
        same_answer("5", r"\int_0^5 dx")


def test_unread_notation_that_is_spelled_alike_is_the_same():
    assert same_spelling(r"x \equiv 5 \pmod{7}", r"x\equiv5\pmod{7}")
    assert not same_spelling(r"x \equiv 5 \pmod{7}", r"x \equiv 5 \pmod{8}")
    assert not same_spelling("((", "((")


def test_words_are_the_same_in_any_case_but_formulas_are_not():
    assert same_text("New York", r"\text{new york}.")
    assert not same_text("2X", "2x")
    assert not same_text("n!", "n")
    assert not same_text("???", "???")


def test_an_answer_beyond_the_limit_of_length_is_compared_as_text():
    assert same_answer("1" * 20_000, "1" * 20_000)
    assert not same_answer("5", "(" * 20_000 + "5")
