# SPDX-License-Identifier: Apache-2.0
"""Addition problems and their held-out tenth."""

from m2flow.data.arithmetic import problems, question, spread, terms


def test_the_splits_share_no_problem_and_miss_none():
    train, held_out = set(problems("train")), set(problems("held_out"))
    assert not train & held_out
    assert train | held_out == {(a, b) for a in range(100) for b in range(100)}


def test_the_held_out_tenth_is_the_rule_in_plain_integers():
    rule = {(a, b) for a in range(100) for b in range(100) if (a * 100 + b) * 2654435761 % 2**32 < 2**32 * 0.1}
    assert set(problems("held_out")) == rule
    assert len(rule) == 1001


def test_full_width_terms_have_exactly_so_many_digits():
    pairs = terms(digits=2, full_width=True)
    assert len(pairs) == 90 * 90 and pairs.min() == 10 and pairs.max() == 99
    assert terms(digits=1, full_width=True).min() == 0


def test_three_digits_do_not_overflow():
    pairs = terms(digits=3)
    assert len(pairs) == 10**6
    assert spread(pairs[-1:], digits=3)[0] == 999_999 * 2654435761 % 2**32


def test_a_question_ends_with_the_equals_sign():
    assert question(12, 34) == "12+34="
