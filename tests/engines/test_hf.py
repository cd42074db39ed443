# SPDX-License-Identifier: Apache-2.0
"""The engine of this process, on the model that ships in the package."""

from typing import Any

import numpy as np
import pytest
import torch

from m2flow.data.samples import Prompt
from m2flow.engines.base import SamplingConfig
from m2flow.engines.hf import Hf
from m2flow.errors import EngineError
from m2flow.policies.llm import Llm
from m2flow.trainers.packing.texts import token_logprobs

PROMPTS = [
    Prompt(id=f"p{i}", text=f"{a}+{b}=") for i, (a, b) in enumerate([(3, 4), (12, 30), (99, 1), (45, 45), (7, 88)])
]


@pytest.fixture(scope="module")
def policy():
    return Llm(Llm.Config(model="tiny"))


def generate(policy, prompts, *, samples=3, seed=0, iteration=0, sampling=None, **options):
    engine = Hf(Hf.Config(**options), policy)
    sampling = sampling or SamplingConfig(max_new_tokens=6)
    groups = engine.generate(prompts, samples_per_prompt=samples, sampling=sampling, seed=seed, iteration=iteration)
    return {group.prompt.id: group for group in groups}


def test_greedy_equals_the_generation_of_transformers(policy):
    from transformers import AutoModelForCausalLM

    peer: Any = AutoModelForCausalLM.from_pretrained(policy.folder, dtype=torch.float32, attn_implementation="eager")
    groups = generate(policy, PROMPTS, samples=1, sampling=SamplingConfig(max_new_tokens=6, temperature=0))
    for prompt in PROMPTS:
        ids = torch.from_numpy(policy.encode(prompt))[None]
        stops = list(policy.stop_token_ids)
        out = peer.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=stops, pad_token_id=stops[0])
        assert groups[prompt.id].samples[0].token_ids.tolist() == out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("options", [{"max_batch_size": 1}, {"max_batch_size": 4, "max_prefill_tokens": 1}])
def test_a_sample_does_not_change_with_its_batch(policy, options):
    together, apart = generate(policy, PROMPTS), generate(policy, PROMPTS[::-1], **options)
    for name, group in together.items():
        for one, other in zip(group.samples, apart[name].samples, strict=True):
            assert one.index == other.index and one.token_ids.tolist() == other.token_ids.tolist()
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_seed_iteration_and_index_change_samples(policy):
    def texts(**given):
        return [s.text for g in generate(policy, PROMPTS, samples=8, **given).values() for s in g.samples]

    assert texts() == texts()
    assert texts() != texts(seed=1) and texts() != texts(iteration=1)
    assert len(set(texts()[:8])) > 1


def test_recorded_logprobs_equal_a_full_forward(policy):
    groups = list(generate(policy, PROMPTS).values())
    for group, learned in zip(groups, token_logprobs(policy, groups, temperature=1.0), strict=True):
        for sample, row in zip(group.samples, learned, strict=True):
            np.testing.assert_allclose(sample.logprobs, np.asarray(row)[: len(sample.logprobs)], atol=1e-5)


def test_a_response_ends_at_a_stop_token_or_at_the_limit(policy):
    for group in generate(policy, PROMPTS, samples=8, sampling=SamplingConfig(max_new_tokens=2)).values():
        for sample in group.samples:
            stopped = sample.token_ids[-1] in policy.stop_token_ids
            assert sample.finish_reason == ("stop" if stopped else "length")
            assert stopped or len(sample.token_ids) == 2


def test_a_stop_string_ends_the_response_before_itself(policy):
    sampling = SamplingConfig(max_new_tokens=6, temperature=0, stop=("0",))
    sample = generate(policy, [Prompt(id="x", text="45+45=")], samples=1, sampling=sampling)["x"].samples[0]
    assert sample.finish_reason == "stop" and sample.text == "9"


def test_weights_that_moved_on_are_an_error_until_they_are_taken_over(policy):
    engine = Hf(Hf.Config(), policy)
    given = {"samples_per_prompt": 1, "sampling": SamplingConfig(max_new_tokens=2), "seed": 0, "iteration": 0}
    list(engine.generate(PROMPTS[:1], **given))
    policy.version += 1
    try:
        with pytest.raises(EngineError, match=r"call rollout.load_weights"):
            list(engine.generate(PROMPTS[:1], **given))
        engine.load_weights(policy)
        (group,) = engine.generate(PROMPTS[:1], **given)
        assert set(group.samples[0].versions.tolist()) == {policy.version}
    finally:
        policy.version -= 1


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_generated(policy):
    long = Prompt(id="long one", text="1" * policy.max_context)
    with pytest.raises(EngineError, match=r"prompt 'long one' has \d+ tokens"):
        generate(policy, [*PROMPTS, long])


def test_no_prompts_give_no_groups_and_no_samples_are_an_error(policy):
    assert generate(policy, []) == {}
    with pytest.raises(EngineError, match="samples_per_prompt is 0"):
        generate(policy, PROMPTS, samples=0)
