# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from m2flow.errors import ConfigError, RewardError
from m2flow.registry import load
from m2flow.rewards.base import Response, Verdict
from m2flow.rewards.math_answer import MathAnswer

CASES = json.loads(
    (Path(__file__).parents[1] / "conformance" / "math" / "math_answers.json").read_text(encoding="utf-8")
)
SLOW = r"\int_0^{10^{9}} x^{x^{x}} dx"


@pytest.fixture(scope="module")
def reward():
    """With the limits that are the default."""
    made = MathAnswer(MathAnswer.Config())
    yield made
    made.close()


def score(reward: MathAnswer, completion: str, answer: Any) -> Verdict:
    """One verdict."""
    response = Response(completion=completion, columns={"answer": answer}, where="sample 0 of prompt 'p'")
    return reward.score([response])[0]


def test_every_published_verdict_is_given_within_the_limits(reward):
    cases = CASES["cases"]
    found = reward.score([Response(completion=c["answer"], columns={"answer": c["gold"]}) for c in cases])
    assert len(cases) == CASES["counts"]["total"] == 199
    assert [c["id"] for c, v in zip(cases, found, strict=True) if (v.value == 1.0) is not c["verdict"]] == []
    lost = [(c["category"], v.event) for c, v in zip(cases, found, strict=True) if v.event]
    assert all(pair == ("adversarial", "timeouts") for pair in lost) and len(lost) <= 2


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("85", "85", 1.0),
        ("85", 85, 1.0),
        ("85.0", 85, 1.0),
        ("0.5", 0.5, 1.0),
        (" 85\n", "85", 1.0),
        ("-0", "0", 1.0),
        ("007", "7", 1.0),
        ("1/2", "2/4", 1.0),
        ("86", "85", 0.0),
        ("", "85", 0.0),
        ("???", "???", 0.0),
        ("same words", "same words", 1.0),
    ],
)
def test_plain_answers_need_no_process(completion, answer, value):
    reward = MathAnswer(MathAnswer.Config())
    assert score(reward, completion, answer) == Verdict(value)
    assert reward._pool._workers == []


def test_completions_of_arithmetic_start_no_process():
    reward = MathAnswer(MathAnswer.Config())
    found = reward.score([Response(completion=str(i), columns={"answer": str(i - i % 2)}) for i in range(1000)])
    assert [v.value for v in found] == [float(i % 2 == 0) for i in range(1000)]
    assert reward._pool._workers == []


def test_a_worked_solution_as_gold_gives_its_answer(reward):
    assert score(reward, r"so \boxed{\frac{3}{4}}", "48/64 is\n#### 0.75").value == 1.0


def test_no_gold_answer_means_not_applicable(reward):
    assert score(reward, "5", None) == Verdict(None)


@pytest.mark.parametrize("answer", ["", "  ", "####", [5], {"a": 5}, True])
def test_a_gold_answer_that_is_none_is_an_error_that_says_where(reward, answer):
    with pytest.raises(RewardError, match="sample 0 of prompt 'p': column 'answer' holds"):
        score(reward, "5", answer)


@pytest.mark.parametrize(("on_failure", "value"), [("wrong", 0.0), ("none", None)])
def test_a_hostile_answer_costs_its_sample_and_is_counted(on_failure, value):
    reward = MathAnswer(MathAnswer.Config(timeout_s=0.3, on_failure=on_failure))
    responses = [Response(completion=text, columns={"answer": "5"}) for text in (SLOW, r"\frac{10}{2}", SLOW, "5")]
    hostile, right = Verdict(value, "timeouts"), Verdict(1.0)
    assert reward.score(responses) == [hostile, right, hostile, right]
    assert {"timeouts", "memory_limits", "crashes", "too_long"} == set(MathAnswer.EVENTS)
    reward.close()


@pytest.mark.parametrize(
    "hostile",
    [
        "[" * 10**7,
        "(" * 5000 + "5" + ")" * 5000,
        "9**9**9",
        "1" * 10**6,
        r"\boxed{" + "9^" * 10**6 + "}",
        "\x00" * 10**6,
    ],
    ids=["10 MB of brackets", "deep", "tower", "digits", "boxed", "zeros"],
)
def test_ten_megabytes_or_deep_nesting_are_only_wrong(reward, hostile):
    assert score(reward, hostile, "5").value == 0.0


def test_an_answer_too_long_to_read_is_counted(reward):
    assert score(reward, "[" * 10**5, "5") == Verdict(0.0, "too_long")
    assert score(reward, " " * 10**6 + "5" + " " * 10**6, "5") == Verdict(1.0)


def test_the_final_answer_is_taken_from_where_the_option_says():
    few_shot = "85\nQ: 1 + 1 = ?\nA: 2"
    assert score(MathAnswer(MathAnswer.Config(extract="first_line")), few_shot, "85").value == 1.0
    assert score(MathAnswer(MathAnswer.Config(extract="last_number")), few_shot, "2").value == 1.0
    assert score(MathAnswer(MathAnswer.Config(extract="boxed_only")), "85", "85").value == 0.0
    assert score(MathAnswer(MathAnswer.Config(extract="marker")), "so #### 85\nbye", "85").value == 1.0


def test_the_gold_column_can_have_another_name():
    reward = MathAnswer(MathAnswer.Config(answer="solution"))
    assert reward.columns == ("solution",)
    assert reward.score([Response(completion="5", columns={"solution": "5"})]) == [Verdict(1.0)]


@pytest.mark.parametrize("option", [{"timeout_s": 0}, {"memory_bytes": 1000}, {"num_workers": 0}, {"extract": "guess"}])
def test_options_out_of_range_are_refused(option):
    with pytest.raises(ConfigError, match=next(iter(option))):
        MathAnswer.Config(**option)


def test_it_is_a_plug_in_and_imports_neither_torch_nor_math_verify():
    assert load("rewards", "math_answer") is MathAnswer
    code = "import m2flow.rewards.math_answer, sys; print({'torch', 'sympy', 'math_verify'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
