# SPDX-License-Identifier: Apache-2.0
import functools
import math

import numpy as np
import pytest

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.errors import RewardError
from m2flow.flow.scorer import Scorer


def group(text: str = "4", **columns: object) -> Group:
    """One prompt with one response."""
    empty = np.zeros(0, np.float32)
    sample = Sample(
        index=3,
        token_ids=np.zeros(0, np.int64),
        logprobs=empty,
        sampled_logprobs=empty,
        entropies=empty,
        versions=np.zeros(0, np.int32),
        text=text,
        finish_reason="stop",
    )
    prompt = Prompt(id="sums/1", text="2+2=", columns=columns)
    return Group(prompt=prompt, prompt_ids=np.zeros(1, np.int64), samples=[sample])


def call(function, **columns):
    """What ``function`` gives as a reward for one response."""
    made = group(**columns)
    return Scorer(function).call(made.samples[0], made)


def test_arguments_are_given_by_name():
    seen = {}

    def everything(completion, prompt, sample, group, answer):
        seen.update(completion=completion, prompt=prompt, sample=sample.index, group=len(group.samples), answer=answer)
        return 1

    assert call(everything, answer="four") == 1.0
    assert seen == {"completion": "4", "prompt": "2+2=", "sample": 3, "group": 1, "answer": "four"}


def test_a_function_gets_only_what_it_asks_for_or_all_columns():
    assert call(lambda answer: len(answer), answer="four", other=1) == 4.0
    assert call(lambda **given: len(given), answer="four", other=1) == 6.0
    assert call(lambda completion, missing=7: missing) == 7.0
    assert call(lambda completion, answer="no": answer == "yes", answer="yes") == 1.0


def test_a_column_called_like_a_given_argument_stays_out_of_sight():
    assert call(lambda completion: completion == "4", completion="other") == 1.0


def test_a_chat_prompt_is_given_as_messages():
    made = group()
    chat = Group(
        prompt=Prompt(id="c", messages=({"role": "user", "content": "hi"},)),
        prompt_ids=made.prompt_ids,
        samples=made.samples,
    )
    assert Scorer(lambda prompt: prompt == [{"role": "user", "content": "hi"}]).call(made.samples[0], chat) == 1.0


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (-0.5, -0.5),
        (None, None),
        (np.float32(2), 2.0),
        (np.int64(2), 2.0),
        (np.bool_(True), 1.0),
    ],
)
def test_numbers_bools_and_none_are_rewards(value, reward):
    assert call(lambda: value) == reward


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", [1.0], np.zeros(2), 1j, {}, pytest.param(10**9999, id="huge")]
)
def test_anything_else_is_an_error_that_names_function_prompt_sample_and_value(value):
    def odd(completion):
        return value

    with pytest.raises(RewardError, match=r"reward 'odd' returned .* for sample 3 of prompt 'sums/1', expected a"):
        call(odd)


def test_an_awaitable_from_a_plain_function_is_an_error_and_no_warning():
    async def later():
        return 1.0

    with pytest.raises(RewardError, match="returned <coroutine"):
        call(lambda: later())


def test_what_a_function_raises_is_the_cause_with_its_own_line():
    def broken(completion):
        return {}["no such key"]

    with pytest.raises(RewardError, match=r"reward 'broken' raised KeyError on sample 3 of prompt 'sums/1'") as error:
        call(broken)
    cause = error.value.__cause__
    assert isinstance(cause, KeyError)
    trace = cause.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None and trace.tb_frame.f_code.co_name == "broken"


def test_leaving_the_debugger_is_no_error_of_the_function():
    import bdb

    def stopped(completion):
        raise bdb.BdbQuit

    with pytest.raises(bdb.BdbQuit):
        call(stopped)


def test_a_parameter_that_nothing_fills_is_said_with_the_columns_there_are():
    scorer = Scorer(lambda completion, answr: 0)
    with pytest.raises(RewardError, match=r"asks for 'answr', which prompt 'p' .*are answer, level; besides"):
        scorer.check({"answer": 1, "level": 2}, "prompt 'p'")
    scorer.check({"answr": 1}, "prompt 'p'")


class Grader:
    """A callable object."""

    def __call__(self, completion):
        return 1

    async def later(self, completion):
        return 1


class AsyncGrader:
    """A callable object that is async."""

    async def __call__(self, completion):
        return 1


async def judged(completion, strict):
    return 1


@pytest.mark.parametrize(
    ("function", "name", "is_async"),
    [
        (Grader(), "Grader", False),
        (Grader().later, "later", True),
        (AsyncGrader(), "AsyncGrader", True),
        (judged, "judged", True),
        (functools.partial(judged, strict=True), "judged", True),
        (lambda completion: 1, "lambda", False),
    ],
)
def test_any_callable_serves_and_has_a_name(function, name, is_async):
    scorer = Scorer(function)
    assert (scorer.name, scorer.is_async) == (name, is_async)


def test_positional_only_parameters_are_refused():
    def old(completion, /):
        return 1

    with pytest.raises(RewardError, match="drop the '/'"):
        Scorer(old)


def test_a_function_that_hides_its_parameters_is_refused():
    with pytest.raises(RewardError, match="does not say which arguments"):
        Scorer(max)
