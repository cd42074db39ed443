# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from m2flow.rewards.answers.finals import extract_final, gold_final, last_box

FEW_SHOT = "85\nQ: 12 + 30 = ?\nA: 42\n"


@pytest.mark.parametrize(
    ("text", "how", "final"),
    [
        (r"so \boxed{3}, no: \boxed{4}.", "boxed", "4"),
        (r"\boxed{\frac{1}{2}}", "boxed", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", "boxed", r"\{1,2\}"),
        (r"\boxed{x_{1}} and }", "boxed", "x_{1}"),
        (r"$\boxed 7$.", "boxed", "7"),
        (r"\boxed7", "boxed", "7"),
        (r"\fbox{7}", "boxed", "7"),
        (r"\boxed{\boxed{7}}", "boxed", "7"),
        (r"\boxedfoo{7}", "boxed", r"\boxedfoo{7}"),
        (r"first \boxed{3}, then \boxed{4", "boxed", None),
        (r"\boxed{", "boxed", None),
        ("  85 ", "boxed", "85"),
        ("The answer is 85", "boxed", "85"),
        ("Therefore, the final answer is: $85$", "boxed", "$85$"),
        ("The answer is not 85", "boxed", "not 85"),
        ("", "boxed", None),
        (" \n ", "boxed", None),
        (FEW_SHOT, "boxed", FEW_SHOT.strip()),
        (r"it is \boxed{4}", "boxed_only", "4"),
        ("it is 4", "boxed_only", None),
        (FEW_SHOT, "first_line", "85"),
        ("\n\n 85 \nQ: 1", "first_line", "85"),
        (r"so \boxed{4} it is" + "\n" + r"\boxed{5}", "first_line", "4"),
        ("", "first_line", None),
        ("He has 3 apples and 1,234.5 pears.", "last_number", "1,234.5"),
        ("It is -7.", "last_number", "-7"),
        ("7-3", "last_number", "3"),
        ("about 3/4", "last_number", "3/4"),
        ("12 %", "last_number", "12 %"),
        (r"3 or \boxed{x}; 9", "last_number", "x"),
        ("none", "last_number", None),
        ("work\n#### 72", "marker", "72"),
        ("The answer is 5 apples\nQ: next", "marker", "5 apples"),
        ("#### 1\n#### 2", "marker", "2"),
        ("Answer: 12", "marker", "12"),
        ("72", "marker", None),
        (r"#### 1 and \boxed{2}", "marker", "2"),
    ],
)
def test_the_final_answer_is_where_the_option_says(text, how, final):
    assert extract_final(text, how) == final


@pytest.mark.parametrize(
    ("gold", "final"),
    [
        ("42", "42"),
        ("Natalia sold 48/2 = 24.\n#### 72", "72"),
        (r"We see that $x=\boxed{\frac{3}{4}}$.", r"\frac{3}{4}"),
        ("  ", None),
        ("####", None),
    ],
)
def test_a_worked_solution_gives_its_answer_as_gold(gold, final):
    assert gold_final(gold) == final


def test_a_box_that_is_not_closed_is_a_box_without_an_answer():
    assert last_box(r"\boxed{3") == (True, None)
    assert last_box("3") == (False, None)


@pytest.mark.parametrize(
    "hostile",
    [r"\boxed{" * 10**6, "{" * 10**7, "1," * 10**6, "answer is " * 10**6, "- " * 10**6, r"\boxed{" + "{}" * 10**5],
)
def test_megabytes_are_searched_in_linear_time(hostile):
    for how in ("boxed", "last_number", "first_line", "marker"):
        start = time.process_time()
        extract_final(hostile, how)
        assert time.process_time() - start < 5
