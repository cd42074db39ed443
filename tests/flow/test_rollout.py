# SPDX-License-Identifier: Apache-2.0
"""The role that samples: what it hands to its engine, and the whole way on the model of the package."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from m2flow.config import Config
from m2flow.data.samples import Group, Prompt
from m2flow.engines.base import Engine, SamplingConfig
from m2flow.engines.hf import Hf
from m2flow.errors import ConfigError, EngineError
from m2flow.flow.rollout import Rollout
from m2flow.policies.llm import Llm
from m2flow.runtime.context import Context

PROMPTS = [Prompt(id=text, text=text) for text in ("3+4=", "12+30=", "45+45=")]


class Recording(Engine):
    """Remembers what it was asked for."""

    class Config(Config):
        """No options."""

    def generate(self, prompts: Iterable[Prompt], **asked: Any) -> Iterator[Group]:
        """One empty group for each prompt."""
        self.policy.append(asked)
        return iter([Group(prompt=prompt, prompt_ids=np.arange(1), samples=[]) for prompt in prompts])

    def load_weights(self, policy: Any) -> None:
        """Remembers the policy."""
        self.policy.append(policy)


def context(seed: int, iteration: int) -> Context:
    return Context(seed=seed, iteration=iteration, num_iterations=10, span=lambda _: nullcontext())


def asked(**options: Any) -> tuple[Rollout, list[Any]]:
    calls: list[Any] = []
    return Rollout(calls, engine=Recording.Config(), **options), calls


def test_samples_are_seeded_by_the_run_and_its_iteration():
    rollout, calls = asked()
    assert len(list(rollout.generate(PROMPTS))) == 3
    rollout.context = context(seed=7, iteration=4)
    rollout.generate(PROMPTS, samples_per_prompt=2)
    assert [(c["seed"], c["iteration"], c["samples_per_prompt"]) for c in calls] == [(0, 0, 8), (7, 4, 2)]


def test_a_seed_of_its_own_stands_above_that_of_the_run():
    rollout, calls = asked(seed=0)
    rollout.context = context(seed=7, iteration=4)
    rollout.generate(PROMPTS)
    assert (calls[0]["seed"], calls[0]["iteration"]) == (0, 4)


def test_a_call_may_draw_otherwise():
    rollout, calls = asked(sampling={"max_new_tokens": 5})
    rollout.generate(PROMPTS)
    rollout.generate(PROMPTS, sampling=SamplingConfig(temperature=0))
    assert [c["sampling"] for c in calls] == [SamplingConfig(max_new_tokens=5), SamplingConfig(temperature=0)]


def test_the_call_is_a_generator_so_that_a_run_makes_it_a_stream():
    rollout, _ = asked()
    assert inspect.isgenerator(rollout.generate(PROMPTS))


def test_weights_are_those_of_the_learner():
    rollout, calls = asked()
    rollout.load_weights(SimpleNamespace(policy="the learner's"))
    assert calls == ["the learner's"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "hv"}, "did you mean 'hf'"),
        ({"engine": {"name": "hf", "max_batch": 3}}, "max_batch_size"),
        ({"engine": {"name": "hf", "max_batch_size": 0}}, "at least 1"),
        ({"sampling": {"temperature": -1}}, "at least 0"),
    ],
)
def test_mistakes_in_options_are_found_when_it_is_made(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Rollout(Llm(), **options)


def test_making_one_loads_no_model():
    policy = Llm(Llm.Config(model="tiny"))
    rollout = Rollout(policy, engine={"name": "hf", "max_batch_size": 3})
    assert isinstance(rollout.engine, Hf) and rollout.engine.config.max_batch_size == 3
    assert "module" not in vars(policy)


def test_groups_are_stamped_and_a_greedy_evaluation_needs_no_seed():
    policy = Llm(Llm.Config(model="tiny"))
    rollout = Rollout(policy, sampling=SamplingConfig(max_new_tokens=6))
    rollout.context = context(seed=1, iteration=3)
    groups = list(rollout.generate(PROMPTS, samples_per_prompt=4))
    assert {group.prompt.id for group in groups} == {prompt.id for prompt in PROMPTS}
    assert all(group.iteration == 3 and [s.index for s in group.samples] == [0, 1, 2, 3] for group in groups)
    greedy = SamplingConfig(max_new_tokens=6, temperature=0)

    def texts() -> dict[str, str]:
        return {g.prompt.id: g.samples[0].text for g in rollout.generate(PROMPTS, 1, sampling=greedy)}

    first = texts()
    rollout.context = context(seed=2, iteration=5)
    assert texts() == first


def test_mistakes_in_a_call_are_found_before_the_first_group_is_asked_for():
    rollout = Rollout(Llm(Llm.Config(model="tiny")), sampling=SamplingConfig(max_new_tokens=6))
    with pytest.raises(EngineError, match="samples_per_prompt is 0"):
        rollout.generate(PROMPTS, samples_per_prompt=0)
    with pytest.raises(EngineError, match="'long' has"):
        rollout.generate([*PROMPTS, Prompt(id="long", text="1" * 1000)])
