# SPDX-License-Identifier: Apache-2.0
"""The engine of this process against transformers, and against itself in other batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding.cache import Decode
from m2flow.engines.hf import Hf
from m2flow.errors import EngineError
from m2flow.policies.llm import Llm

PROMPTS = [Prompt(id=f"p{i}", text=t) for i, t in enumerate(["a", "the sum of", "3+4=", "why?", "0123456789abcdef"])]
Generate = Callable[..., dict[str, Group]]
ONE = {"samples_per_prompt": 1, "seed": 0, "iteration": 0}


def samples_of(groups: dict[str, Group]) -> list[Sample]:
    return [sample for prompt in PROMPTS for sample in groups[prompt.id].samples]


def tokens_of(groups: dict[str, Group]) -> list[list[int]]:
    return [sample.token_ids.tolist() for sample in samples_of(groups)]


@pytest.fixture
def forwards(llama: Llm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens in each forward of ``llama``, as they happen."""
    sizes: list[int] = []
    plain = llama.hidden

    def counted(token_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        sizes.append(len(token_ids))
        return plain(token_ids, *args, **kwargs)

    monkeypatch.setattr(llama, "hidden", counted)
    return sizes


def greedy(module: Any, policy: Any, prompt: Prompt, limit: int) -> list[int]:
    ids = torch.from_numpy(policy.encode(prompt))[None]
    stops = list(policy.stop_token_ids)
    out = module.generate(ids, max_new_tokens=limit, do_sample=False, eos_token_id=stops, pad_token_id=stops[0])
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 2}, {"max_prefill_tokens": 3}])
def test_greedy_equals_the_generation_of_transformers(llama: Llm, peer: Any, generate: Generate, options: Any):
    sampling = SamplingConfig(max_new_tokens=40, temperature=0)
    groups = generate(llama, PROMPTS, samples=1, sampling=sampling, **options)
    assert tokens_of(groups) == [greedy(peer, llama, prompt, 40) for prompt in PROMPTS]
    assert all((sample.sampled_logprobs == 0).all() and (sample.logprobs < 0).all() for sample in samples_of(groups))


def test_greedy_equals_the_generation_of_transformers_with_the_model_of_the_package(generate: Generate):
    policy = Llm(Llm.Config(model="tiny"))
    peer: Any = AutoModelForCausalLM.from_pretrained(policy.folder, dtype=torch.float32, attn_implementation="sdpa")
    prompts = [Prompt(id=text, text=text) for text in ("3+4=", "12+30=", "99+1=", "45+45=")]
    groups = generate(policy, prompts, samples=2, sampling=SamplingConfig(max_new_tokens=6, temperature=0))
    for prompt in prompts:
        for sample in groups[prompt.id].samples:
            assert sample.token_ids.tolist() == greedy(peer, policy, prompt, 6)


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 1},
        {"max_batch_size": 3},
        {"max_batch_size": 7, "max_prefill_tokens": 5},
        {"max_prefill_tokens": 1},
        {"max_cache_tokens": 60},
        {"max_cache_tokens": 200},
    ],
)
def test_a_sample_does_not_change_with_its_batch(llama: Llm, generate: Generate, options: dict[str, int]):
    together, apart = generate(llama, PROMPTS, samples=5), generate(llama, PROMPTS[::-1], samples=5, **options)
    assert tokens_of(together) == tokens_of(apart)
    for one, other in zip(samples_of(together), samples_of(apart), strict=True):
        assert one.index == other.index and one.finish_reason == other.finish_reason
        for name in ("logprobs", "sampled_logprobs", "entropies"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=2e-5)


def test_a_sample_is_the_same_alone(llama: Llm, generate: Generate):
    together = generate(llama, PROMPTS, samples=4)
    for prompt in PROMPTS:
        alone = generate(llama, [prompt], samples=1)[prompt.id].samples[0]
        assert alone.token_ids.tolist() == together[prompt.id].samples[0].token_ids.tolist()


def test_a_higher_limit_only_makes_samples_longer(llama: Llm, generate: Generate):
    short = generate(llama, PROMPTS, sampling=SamplingConfig(max_new_tokens=7))
    assert tokens_of(short) == [tokens[:7] for tokens in tokens_of(generate(llama, PROMPTS))]


def test_seed_iteration_and_index_change_samples(llama: Llm, generate: Generate):
    base = tokens_of(generate(llama, PROMPTS))
    assert base == tokens_of(generate(llama, PROMPTS))
    assert base != tokens_of(generate(llama, PROMPTS, seed=1)) and base != tokens_of(
        generate(llama, PROMPTS, iteration=1)
    )
    assert len({tuple(tokens) for tokens in base}) == len(base)


def test_a_prompt_that_is_there_twice_is_answered_twice_differently(llama: Llm):
    engine = Hf(Hf.Config(), llama)
    asked = {**ONE, "samples_per_prompt": 3, "sampling": SamplingConfig(max_new_tokens=20)}
    groups = list(engine.generate([PROMPTS[1], PROMPTS[2], PROMPTS[1]], **asked))
    twice = [sample.token_ids.tolist() for group in groups if group.prompt.id == "p1" for sample in group.samples]
    assert len(twice) == 6 and len({tuple(tokens) for tokens in twice}) == 6


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 20, "temperature": 1.3}, {"top_p": 0.8}])
def test_recorded_numbers_equal_a_full_forward_of_transformers(
    llama: Llm, peer: Any, generate: Generate, options: dict[str, Any]
):
    sampling = SamplingConfig(max_new_tokens=20, **options)
    given: Any = None  # the warpers do not look at it
    warpers = [TemperatureLogitsWarper(float(sampling.temperature))]
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)]
    for group in generate(llama, PROMPTS, sampling=sampling).values():
        for sample in group.samples:
            ids = torch.from_numpy(np.append(group.prompt_ids, sample.token_ids))
            with torch.no_grad():
                logits = peer(ids[None]).logits[0, len(group.prompt_ids) - 1 : -1]
            plain = logits.log_softmax(-1)
            for warper in warpers:
                logits = warper(given, logits)
            chosen = torch.from_numpy(sample.token_ids)[:, None]
            np.testing.assert_allclose(sample.logprobs, plain.gather(1, chosen)[:, 0], atol=1e-5)
            np.testing.assert_allclose(
                sample.sampled_logprobs, logits.log_softmax(-1).gather(1, chosen)[:, 0], atol=1e-5
            )
            np.testing.assert_allclose(sample.entropies, -(plain.exp() * plain).sum(-1), atol=1e-5)


def test_bfloat16_records_what_a_full_forward_gives_about(llama_folder: Any, peer: Any, generate: Generate):
    policy = Llm(Llm.Config(model=str(llama_folder), dtype="bfloat16"))
    for group in generate(policy, PROMPTS).values():
        for sample in group.samples:
            ids = torch.from_numpy(np.append(group.prompt_ids, sample.token_ids))
            with torch.no_grad():
                plain = peer(ids[None]).logits[0, len(group.prompt_ids) - 1 : -1].log_softmax(-1)
            expected = plain.gather(1, torch.from_numpy(sample.token_ids)[:, None])[:, 0]
            np.testing.assert_allclose(sample.logprobs, expected, atol=0.25)


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 4, "max_prefill_tokens": 6}])
def test_every_token_is_computed_once_and_a_prompt_once_for_its_group(
    llama: Llm, generate: Generate, forwards: list[int], options: dict[str, int]
):
    groups = generate(llama, PROMPTS, samples=4, **options)
    lengths = [len(sample.token_ids) for sample in samples_of(groups)]
    assert len(set(lengths)) > 3  # so that there was something to wait for
    prompts = sum(len(group.prompt_ids) for group in groups.values())
    assert sum(forwards) == prompts + sum(length - 1 for length in lengths)


def test_no_forward_is_larger_than_configured(llama: Llm, generate: Generate, forwards: list[int]):
    generate(llama, PROMPTS, samples=3, max_batch_size=4, max_prefill_tokens=6)
    assert max(forwards) <= 4 + 6


def test_the_cache_is_never_larger_than_configured(llama: Llm, generate: Generate, monkeypatch: pytest.MonkeyPatch):
    like, plain, sizes = torch.zeros(2, 1, 8), llama.hidden, []

    def watched(*args: Any, layout: Any) -> torch.Tensor:
        out = plain(*args, layout=layout)
        stores = {part.prompts for part in layout.parts}
        stores |= {part.responses for part in layout.parts if isinstance(part, Decode)}
        sizes.append(sum(store.layer(0, like)[0].untyped_storage().nbytes() for store in stores))
        return out

    monkeypatch.setattr(llama, "hidden", watched)
    prompts = [Prompt(id=str(i), text="x" * length) for i, length in enumerate([1, 40, 2, 3, 30, 1, 1, 2, 25, 5, 1, 4])]
    generate(llama, prompts, samples=3, max_cache_tokens=200, sampling=SamplingConfig(max_new_tokens=20))
    tokens = max(sizes) / (like.numel() * like.itemsize)
    assert 150 < tokens <= 200


def test_samples_of_very_different_lengths_do_not_wait_for_each_other(
    llama: Llm, generate: Generate, forwards: list[int]
):
    prompts = [Prompt(id=str(i), text="x" * (1 + i % 7)) for i in range(15)]
    groups = generate(llama, prompts, samples=4, max_batch_size=8, sampling=SamplingConfig(max_new_tokens=60))
    lengths = [len(sample.token_ids) for prompt in prompts for sample in groups[prompt.id].samples]
    assert max(lengths) > 3 * np.median(lengths)
    # A batch that waits for its longest sample takes as many steps as the longest of every 8 in turn.
    assert len(forwards) < 0.8 * sum(max(lengths[i : i + 8]) for i in range(0, len(lengths), 8))


def test_groups_come_as_soon_as_they_are_finished(llama: Llm, forwards: list[int]):
    engine = Hf(Hf.Config(max_batch_size=2), llama)
    asked = {**ONE, "samples_per_prompt": 2, "sampling": SamplingConfig(max_new_tokens=20)}
    groups = engine.generate(PROMPTS, **asked)
    assert not forwards
    next(groups)
    first = len(forwards)
    assert first <= 20
    list(groups)
    assert len(forwards) > 2 * first


def test_a_response_ends_at_a_stop_token_or_at_the_limit(llama: Llm, generate: Generate):
    reasons = set()
    for sample in samples_of(generate(llama, PROMPTS, samples=8)):
        stopped = int(sample.token_ids[-1]) in llama.stop_token_ids
        reasons.add(sample.finish_reason)
        assert sample.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(sample.token_ids) == 20
        assert not np.isin(sample.token_ids[:-1], llama.stop_token_ids).any()
        assert sample.text == llama.decode(sample.token_ids[:-1] if stopped else sample.token_ids)
    assert reasons == {"stop", "length"}


def test_a_stop_token_at_the_limit_is_a_stop(llama: Llm, generate: Generate):
    stopped = [
        s for s in samples_of(generate(llama, PROMPTS, samples=8)) if s.finish_reason == "stop" and len(s.token_ids) > 1
    ]
    for sample in stopped[:3]:
        again = generate(llama, PROMPTS, samples=8, sampling=SamplingConfig(max_new_tokens=len(sample.token_ids)))
        same = [s for s in samples_of(again) if s.token_ids.tolist() == sample.token_ids.tolist()]
        assert same and all(s.finish_reason == "stop" for s in same)


def test_a_stop_string_ends_the_response_before_itself(generate: Generate):
    policy = Llm(Llm.Config(model="tiny"))
    sampling = SamplingConfig(max_new_tokens=6, temperature=0, stop=("0",))
    sample = generate(policy, [Prompt(id="x", text="45+45=")], samples=1, sampling=sampling)["x"].samples[0]
    assert sample.finish_reason == "stop" and sample.text == "9"
    assert policy.decode(sample.token_ids) == "90"


def test_weights_that_moved_on_are_an_error_until_they_are_taken_over(llama: Llm):
    engine = Hf(Hf.Config(), llama)
    asked = {**ONE, "sampling": SamplingConfig(max_new_tokens=2)}
    list(engine.generate(PROMPTS[:1], **asked))
    llama.version += 1
    with pytest.raises(EngineError, match=r"at version 1 .* took over version 0: call rollout.load_weights"):
        engine.generate(PROMPTS[:1], **asked)
    engine.load_weights(llama)
    (group,) = engine.generate(PROMPTS[:1], **asked)
    assert set(group.samples[0].versions.tolist()) == {1}


def test_weights_that_move_on_between_two_groups_are_an_error_or_stamped_on_the_tokens(llama: Llm):
    asked = {**ONE, "samples_per_prompt": 4, "sampling": SamplingConfig(max_new_tokens=60)}
    engine = Hf(Hf.Config(), llama)
    stale = engine.generate(PROMPTS, **asked)
    fresh = engine.generate(PROMPTS, **asked)
    next(stale)
    next(fresh)
    llama.version += 1
    with pytest.raises(EngineError, match=r"call rollout.load_weights"):
        next(stale)
    engine.load_weights(llama)
    versions = [sample.versions for group in fresh for sample in group.samples]
    assert any(set(v.tolist()) == {0, 1} and (np.diff(v) >= 0).all() for v in versions)


def test_weights_of_another_policy_are_copied(llama: Llm, llama_folder: Any, generate: Generate):
    learner, engine = Llm(Llm.Config(model=str(llama_folder))), Hf(Hf.Config(), llama)
    with torch.no_grad():
        for weight in learner.trainable().values():
            weight.mul_(1.1)
    learner.version = 5
    engine.load_weights(learner)
    groups = engine.generate(
        PROMPTS, samples_per_prompt=3, sampling=SamplingConfig(max_new_tokens=20), seed=0, iteration=0
    )
    got = {group.prompt.id: group for group in groups}
    assert tokens_of(got) == tokens_of(generate(learner, PROMPTS)) and samples_of(got)[0].versions[0] == 5


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_weights_of_another_model_are_refused_and_nothing_is_copied(llama: Llm, change: str):
    class Other:
        version = 1

        def state(self) -> dict[str, torch.Tensor]:
            tensors = {name: weight + 1 for name, weight in llama.state().items()}
            name = next(iter(tensors))
            first = tensors.pop(name)
            changed = {"missing": {}, "unexpected": {name: first, "extra": first}, "shape": {name: first[:-1]}}
            return {**tensors, **changed[change]}

    before = {name: weight.clone() for name, weight in llama.state().items()}
    with pytest.raises(EngineError, match="another model: 1 tensors are missing, unexpected or of another shape"):
        Hf(Hf.Config(), llama).load_weights(Other())
    assert all(torch.equal(weight, before[name]) for name, weight in llama.state().items())


def test_a_module_in_training_stays_in_training_and_keeps_its_gradients(llama: Llm, generate: Generate):
    base = tokens_of(generate(llama, PROMPTS))
    llama.module.train()
    assert tokens_of(generate(llama, PROMPTS)) == base
    assert all(part.training for part in llama.module.modules())
    assert all(not weight.is_inference() for weight in llama.module.parameters())


def test_weights_that_diverged_are_an_error(llama: Llm, generate: Generate):
    with torch.no_grad():
        llama.module.model.norm.weight[0] = torch.nan
    with pytest.raises(EngineError, match="not finite"):
        generate(llama, PROMPTS)


def test_a_prompt_that_does_not_fit_is_named_before_anything_is_generated(llama: Llm, forwards: list[int]):
    long = Prompt(id="long one", text="1" * 80)
    engine = Hf(Hf.Config(), llama)
    with pytest.raises(EngineError, match=r"prompt 'long one' has 80 tokens; with max_new_tokens 17 .* context of 96"):
        engine.generate([*PROMPTS, long], **ONE, sampling=SamplingConfig(max_new_tokens=17))
    assert not forwards
    (group,) = engine.generate([long], **ONE, sampling=SamplingConfig(max_new_tokens=16))
    assert len(group.prompt_ids) == 80


def test_a_prompt_that_does_not_fit_in_the_cache_is_named(llama: Llm, generate: Generate):
    with pytest.raises(
        EngineError, match=r"prompt 'p4' has 16 tokens; with max_new_tokens 20 .* max_cache_tokens of 35"
    ):
        generate(llama, PROMPTS, max_cache_tokens=35)
    assert len(generate(llama, PROMPTS, max_cache_tokens=36)) == len(PROMPTS)


def test_no_prompts_give_no_groups_and_no_samples_are_an_error(llama: Llm, generate: Generate):
    assert generate(llama, []) == {}
    with pytest.raises(EngineError, match="samples_per_prompt is 0"):
        generate(llama, PROMPTS, samples=0)
