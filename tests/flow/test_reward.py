# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import sys
import threading
import time

import numpy as np
import pytest

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.errors import ConfigError, RewardError
from m2flow.flow.reward import MathReward, Reward
from m2flow.flow.run import Run, RunConfig
from m2flow.rewards.base import Response, RewardFunction, Verdict
from m2flow.rewards.math_answer import MathAnswer

SLOW = r"\int_0^{10^{9}} x^{x^{x}} dx"


def sample(index: int, text: str) -> Sample:
    """A response without tokens."""
    empty = np.zeros(0, np.float32)
    return Sample(
        index=index,
        token_ids=np.zeros(0, np.int64),
        logprobs=empty,
        sampled_logprobs=empty,
        entropies=empty,
        versions=np.zeros(0, np.int32),
        text=text,
        finish_reason="stop",
    )


def group(*texts: str, id: str = "p", **columns: object) -> Group:
    """One prompt with these responses; its answer is 4 unless given."""
    prompt = Prompt(id=id, text="2+2=", columns={"answer": "4", **columns})
    return Group(prompt=prompt, prompt_ids=np.zeros(1, np.int64), samples=[sample(i, t) for i, t in enumerate(texts)])


def rewards(reward: Reward, *groups: Group) -> list[float | None]:
    """The totals of all samples."""
    return [s.reward for g in reward.score(groups) for s in g.samples]


def length(completion):
    return len(completion)


def even(completion):
    return int(completion) % 2 == 0 if completion.isdigit() else None


async def echoed(completion, answer):
    await asyncio.sleep(0)
    return completion == answer


class Fixed(RewardFunction):
    """Gives what it was made with; it stands in for somebody's plug-in."""

    EVENTS = ("hiccups",)

    class Config(MathAnswer.Config.__base__):  # type: ignore[misc, name-defined]
        """No options."""

    def __init__(self, *verdicts):
        super().__init__(self.Config())
        self.verdicts = list(verdicts)

    @property
    def columns(self):
        return ("answer",)

    def score(self, responses):
        return self.verdicts


def test_every_function_fills_its_name_and_the_total_is_the_weighted_sum():
    (scored,) = Reward(length, echoed, weights=[0.5, 2]).score([group("4", "10")])
    assert [s.rewards for s in scored.samples] == [{"length": 1.0, "echoed": 1.0}, {"length": 2.0, "echoed": 0.0}]
    assert [s.reward for s in scored.samples] == [2.5, 1.0]


def test_weights_go_by_name_too_and_are_one_otherwise():
    assert rewards(Reward(length, echoed, weights={"length": 10}), group("4")) == [11.0]
    assert rewards(Reward(length, echoed), group("4")) == [2.0]


def test_a_function_that_does_not_apply_is_left_out_of_the_sum():
    (scored,) = Reward(even, length).score([group("4", "x")])
    assert [s.reward for s in scored.samples] == [2.0, 1.0]
    assert scored.samples[1].rewards == {"even": None, "length": 1.0}


def test_where_none_applies_there_is_no_reward():
    assert rewards(Reward(even), group("4", "x")) == [1.0, None]


def test_the_groups_that_were_given_stay_as_they_are():
    given = group("4")
    (scored,) = Reward(length).score([given])
    assert (given.samples[0].reward, given.samples[0].rewards) == (None, {})
    assert scored.prompt is given.prompt and scored.samples[0].token_ids is given.samples[0].token_ids


def test_order_of_groups_and_samples_is_kept_over_chunks():
    groups = [group(*("x" * (10 * i + j) for j in range(3)), id=str(i)) for i in range(10)]
    scored = list(Reward(length, concurrency=4).score(iter(groups)))
    assert [g.prompt.id for g in scored] == [str(i) for i in range(10)]
    assert [s.reward for g in scored for s in g.samples] == [float(10 * i + j) for i in range(10) for j in range(3)]


def test_groups_are_consumed_as_they_come():
    drawn = []

    def source():
        for i in range(3):
            drawn.append(i)
            yield group("4", "5")

    stream = Reward(length, concurrency=2).score(source())
    assert drawn == []
    next(stream)
    assert drawn == [0]


def test_empty_groups_and_no_groups_give_the_same_back():
    assert list(Reward(length).score([])) == []
    assert [g.samples for g in Reward(length, "math_answer").score([group()])] == [[]]


def test_plain_functions_run_in_the_thread_of_the_loop():
    seen = []

    def where(completion):
        seen.append((threading.get_ident(), sys.gettrace()))
        return 0

    rewards(Reward(where), group("4"))
    assert seen == [(threading.get_ident(), sys.gettrace())]


def test_async_functions_run_at_the_same_time_up_to_the_bound_and_keep_their_order():
    running, most = 0, 0

    async def waits(completion):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02 / (1 + int(completion)))
        running -= 1
        return int(completion)

    groups = [group(*map(str, range(4 * i, 4 * i + 4))) for i in range(3)]
    assert rewards(Reward(waits, concurrency=5), *groups) == [float(i) for i in range(12)]
    assert most == 5


def test_async_functions_keep_one_event_loop_over_all_calls():
    loops = set()

    async def remembers(completion):
        loops.add(asyncio.get_running_loop())
        return 0

    reward = Reward(remembers)
    rewards(reward, group("1"))
    rewards(reward, group("2"))
    assert len(loops) == 1
    reward.close()
    assert rewards(reward, group("3")) == [0.0]


def test_async_functions_work_inside_a_running_event_loop():
    async def notebook():
        return rewards(Reward(echoed), group("4", "5"))

    assert asyncio.run(notebook()) == [1.0, 0.0]


def test_after_an_error_the_other_async_calls_are_ended():
    ended = []

    async def fails(completion):
        if completion == "0":
            raise ValueError("no")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(completion)

    start = time.monotonic()
    with pytest.raises(RewardError, match="'fails' raised ValueError on sample 0 of prompt 'p': no"):
        rewards(Reward(fails), group("0", "1", "2"))
    assert sorted(ended) == ["1", "2"] and time.monotonic() - start < 10


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_can_count_as_not_applicable(is_async):
    def sometimes(completion):
        return 1 / int(completion)

    async def later(completion):
        return 1 / int(completion)

    reward = Reward(later if is_async else sometimes, length, on_error="none")
    name = "later" if is_async else "sometimes"
    assert rewards(reward, group("0", "2", "x")) == [1.0, 1.5, 1.0]
    assert reward.metrics() == {f"reward/{name}_errors": 2.0, "reward/length_errors": 0.0}
    assert reward.metrics() == {f"reward/{name}_errors": 0.0, "reward/length_errors": 0.0}


def test_what_is_no_reward_is_never_forgiven():
    with pytest.raises(RewardError, match="returned nan"):
        rewards(Reward(lambda completion: float("nan"), on_error="none"), group("4"))


def test_a_missing_column_is_an_error_before_any_function_runs():
    called = []

    def first(completion):
        called.append(completion)
        return 0

    def second(completion, solution):
        return 0

    with pytest.raises(RewardError, match=r"'second' asks for 'solution', which prompt 'p' .* its columns are answer"):
        rewards(Reward(first, second), group("4"))
    with pytest.raises(
        RewardError, match=r"'math_answer' needs column 'gold', which prompt 'p' .* its columns are answer"
    ):
        rewards(Reward(first, {"name": "math_answer", "answer": "gold"}), group("4"))
    assert called == []


def test_math_reward_is_the_plug_in_with_its_options():
    assert rewards(MathReward(), group("4.0", "five", "8/2")) == [1.0, 0.0, 1.0]
    assert rewards(MathReward(extract="first_line"), group("4\nQ: next")) == [1.0]
    assert rewards(Reward(MathAnswer.Config(extract="first_line")), group("4\nQ: next")) == [1.0]
    assert rewards(Reward({"name": "math_answer", "answer": "gold"}), group("7", gold=7)) == [1.0]


def test_hostile_answers_are_counted_and_shown_once():
    reward = MathReward(timeout_s=0.3)
    assert rewards(reward, group(SLOW, "4", r"\frac{8}{2}")) == [0.0, 1.0, 1.0]
    zeros = {f"reward/math_answer_{event}": 0.0 for event in MathAnswer.EVENTS}
    assert reward.metrics() == zeros | {"reward/math_answer_timeouts": 1.0}
    assert reward.metrics() == zeros
    reward.close()


def test_a_plug_in_must_give_one_finite_verdict_for_each_response():
    with pytest.raises(RewardError, match="gave 1 verdicts for 2 responses"):
        rewards(Reward(Fixed(Verdict(1.0))), group("1", "2"))
    with pytest.raises(RewardError, match="gave nan for sample 1 of prompt 'p'"):
        rewards(Reward(Fixed(Verdict(1.0), Verdict(float("nan")))), group("1", "2"))


def test_events_of_any_plug_in_become_metrics():
    fixed = Fixed(Verdict(1.0), Verdict(None, "hiccups"))
    reward = Reward(fixed)
    assert rewards(reward, group("1", "2")) == [1.0, None]
    assert reward.metrics() == {f"reward/{fixed.name}_hiccups": 1.0}


def test_a_plug_in_sees_completion_columns_and_place():
    seen: list[Response] = []

    class Spy(Fixed):
        def score(self, responses):
            seen.extend(responses)
            return [Verdict(0.0) for _ in responses]

    rewards(Reward(Spy()), group("1", level=3))
    assert seen == [Response(completion="1", columns={"answer": "4", "level": 3}, where="sample 0 of prompt 'p'")]


def test_a_summary_scores_what_has_no_rewards_yet():
    reward = Reward(echoed, even)
    expected = {
        "reward/samples": 3.0,
        "reward/samples_without_reward": 0.0,
        "reward/mean": pytest.approx(4 / 3 - 1 / 3),
        "reward/std": pytest.approx(np.std([2.0, 0.0, 1.0])),
        "reward/echoed": pytest.approx(1 / 3),
        "reward/even": pytest.approx(2 / 3),
    }
    groups = [group("4", "5"), group("6")]
    assert reward.summary(groups) == expected
    assert reward.summary(list(reward.score(groups))) == expected


def test_a_summary_of_nothing_has_no_means():
    assert Reward(even).summary([group("x")]) == {"reward/samples": 1.0, "reward/samples_without_reward": 1.0}
    assert Reward(even).summary([]) == {"reward/samples": 0.0, "reward/samples_without_reward": 0.0}


def test_scored_groups_are_not_scored_again_for_a_summary():
    calls = []

    def counted(completion):
        calls.append(completion)
        return 1

    reward = Reward(counted)
    reward.summary(list(reward.score([group("4")])))
    assert calls == ["4"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Reward(), RewardError, "at least one function"),
        (lambda: Reward(length, length), RewardError, "two rewards are called 'length'"),
        (lambda: Reward(length, weights=[1, 2]), RewardError, "got 2 weights for 1 rewards"),
        (lambda: Reward(length, weights={"lenght": 1}), RewardError, "weights name 'lenght'"),
        (lambda: Reward(length, weights=[float("inf")]), RewardError, "weight of reward 'length' is inf"),
        (lambda: Reward(length, on_error="ignore"), RewardError, "expected 'raise' or 'none'"),  # pyright: ignore
        (lambda: Reward(length, concurrency=0), RewardError, "at least 1"),
        (lambda: Reward(3), RewardError, "got 3 as a reward"),  # pyright: ignore
        (lambda: Reward("math_anser"), ConfigError, "did you mean 'math_answer'"),
        (lambda: MathReward(extrct="boxed"), ConfigError, "did you mean extract"),
        (lambda: Reward({"name": "math_answer", "timeout_s": -1}), ConfigError, "timeout_s: got -1"),
    ],
)
def test_mistakes_are_said_on_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_run_logs_what_went_wrong_in_every_iteration(tmp_path):
    with Run(RunConfig(iterations=2, run_dir=tmp_path / "run")) as run:
        reward = run.role(MathReward(timeout_s=0.3))
        for _ in run.iterations():
            list(reward.score([group(SLOW if run.iteration == 0 else "4")]))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["reward/math_answer_timeouts"] for line in lines] == [1.0, 0.0]
