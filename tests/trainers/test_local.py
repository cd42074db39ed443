# SPDX-License-Identifier: Apache-2.0
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import m2flow as mf
from m2flow.data.samples import Group
from m2flow.errors import LearnerError
from m2flow.trainers.base import Settings
from m2flow.trainers.packing.texts import Texts, batch_of, token_logprobs

SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=5)), min_size=1, max_size=4
)
FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
Gradients = dict[str, torch.Tensor]


def _close(ours: Gradients, wanted: Gradients) -> None:
    assert ours.keys() == wanted.keys()
    scale = max(g.abs().max().item() for g in wanted.values())
    for name, gradient in wanted.items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-5 * max(scale, 1), rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def _plain_gradients(model: Any, groups: list[Group], logprobs: list[list[torch.Tensor]]) -> Gradients:
    """The loss of the fixtures' algorithm, written for sequences one by one."""
    total, num_tokens = torch.zeros(()), 0
    for group, found in zip(groups, logprobs, strict=True):
        rewards = [float(sample.reward or 0) for sample in group.samples]
        for reward, lp in zip(rewards, found, strict=True):
            advantage = reward - float(np.mean(rewards)) + 0.1
            total = total + (-(lp - lp.detach()).exp() * advantage + 0.01 * lp**2).sum()
            num_tokens += len(lp)
    (total / num_tokens).backward()
    return {name: p.grad for name, p in model.named_parameters()}


@given(shapes=SHAPES, bound=st.integers(20, 120))
@FEW
def test_gradients_equal_those_of_a_padded_batch_whatever_the_micro_batch(
    shapes: Any, bound: int, make_learner: Any, plain_model: Any, make_groups: Any, plain_logprobs: Any, gradients: Any
) -> None:
    groups = make_groups(shapes)
    plain_model.zero_grad()
    wanted = _plain_gradients(plain_model, groups, plain_logprobs(plain_model, groups))
    _close(gradients(make_learner(max_tokens_per_microbatch=bound), groups), wanted)
    _close(gradients(make_learner(max_tokens_per_microbatch=bound, activation_checkpointing=True), groups), wanted)


@pytest.fixture
def groups(make_groups: Callable[..., list[Group]]) -> list[Group]:
    """Four groups, ragged, one a singleton."""
    return make_groups([(4, [6, 3, 8]), (5, [7, 7]), (3, [2]), (6, [5, 9, 1, 4])])


def test_sharing_the_prompt_leaves_gradients_as_they_are(
    make_learner: Any, groups: list[Group], gradients: Any
) -> None:
    learner = make_learner()
    shared = gradients(learner, groups)
    texts = Texts(learner.models, [replace(g, samples=[s]) for g in groups for s in g.samples])
    apart: Gradients = {}
    named = learner.policy.trainable().items()
    learner.trainer.optimizer.step = lambda _: apart.update({k: p.grad.clone() for k, p in named})
    learner.trainer.update(texts, batch_of(groups), settings=Settings(max_tokens=64))
    _close(apart, shared)


def test_the_order_of_groups_and_samples_changes_no_bit(make_learner: Any, groups: list[Group]) -> None:
    shuffled = [replace(g, samples=random.Random(1).sample(g.samples, len(g.samples))) for g in reversed(groups)]
    one, other = (make_learner(minibatches=2, epochs=2, learning_rate=1e-2) for _ in range(2))
    assert one.update(groups) == other.update(shuffled)
    weights, others = one.state()["policy"], other.state()["policy"]
    assert all(torch.equal(v, others[k]) for k, v in weights.items())


def test_a_masked_sample_contributes_nothing_even_if_it_holds_nan(
    make_learner: Any, groups: list[Group], gradients: Any
) -> None:
    cut = groups[1].samples[0]
    cut.finish_reason = "length"
    wanted = gradients(make_learner(drop_truncated=True), groups)
    cut.sampled_logprobs = np.full_like(cut.sampled_logprobs, np.nan)
    found = gradients(make_learner(drop_truncated=True), groups)
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)
    # Its tokens do not matter either: 64 counted tokens of the others remain.
    cut.token_ids = (cut.token_ids + 1) % 61
    _close(gradients(make_learner(drop_truncated=True), groups), wanted)


def test_a_batch_without_a_counted_token_makes_no_step(make_learner: Any, groups: list[Group]) -> None:
    for group in groups:
        for sample in group.samples:
            sample.finish_reason = "length"
    learner = make_learner(drop_truncated=True, learning_rate=1.0)
    before = {k: v.clone() for k, v in learner.state()["policy"].items()}
    stats = learner.update(groups)
    assert stats["learner/steps_without_tokens"] == 1 and stats["learner/steps"] == 0 and learner.policy.version == 0
    assert all(torch.equal(v, before[k]) for k, v in learner.state()["policy"].items())


@pytest.mark.parametrize("bound", [20, 2048])
def test_at_learning_rate_zero_clip_fraction_and_kl_are_exactly_zero(
    bound: int, make_learner: Any, groups: list[Group]
) -> None:
    learner = make_learner(learning_rate=0, epochs=3, minibatches=2, max_tokens_per_microbatch=bound)
    for _ in range(2):
        stats = learner.update(groups)
        assert stats["learner/steps"] == 6
        assert stats["policy/kl"] == 0 and stats["policy/clip_fraction"] == 0


def test_old_log_probs_stay_those_before_the_first_step(make_learner: Any, groups: list[Group]) -> None:
    stats = make_learner(learning_rate=0.1, epochs=3).update(groups)
    assert stats["policy/kl"] > 0.01 and stats["policy/clip_fraction"] > 0.1


def test_the_difference_from_the_rollouts_log_probs_is_measured_before_the_first_step(
    make_learner: Any, groups: list[Group]
) -> None:
    learner = make_learner(learning_rate=0.1, epochs=2)
    for group, found in zip(groups, token_logprobs(learner.policy, groups), strict=True):
        for sample, logprobs in zip(group.samples, found, strict=True):
            sample.sampled_logprobs = sample.logprobs = logprobs.numpy()
    groups[0].samples[0].sampled_logprobs = groups[0].samples[0].sampled_logprobs + np.float32(0.26)
    stats = learner.update(groups)
    # 6 of 52 tokens are off by 0.26.
    assert stats["rollout/logprob_diff_mean"] == pytest.approx(6 * 0.26 / 52, abs=1e-5)
    assert stats["rollout/logprob_diff_max"] == pytest.approx(0.26, abs=1e-5)
    assert stats["rollout/kl"] == pytest.approx(6 / 52 * (np.exp(-0.26) - 1 + 0.26), abs=1e-5)
    fresh = make_learner(learning_rate=0.1).update(groups)
    assert fresh["rollout/logprob_diff_mean"] == pytest.approx(6 * 0.26 / 52, abs=1e-5)


def test_what_the_correction_for_the_rollout_did_is_logged(
    make_policy: Callable[..., mf.Llm], groups: list[Group]
) -> None:
    policy, sampling = make_policy(), mf.SamplingConfig(max_new_tokens=12)
    algorithm = {"name": "grpo", "importance_cap": 1.5, "reject": ["token_k3=0.2"]}
    learner = mf.Learner(policy, algorithm=algorithm, sampling=sampling, trainer={"name": "local"})
    for group, found in zip(groups, token_logprobs(policy, groups), strict=True):
        for sample, logprobs in zip(group.samples, found, strict=True):
            sample.sampled_logprobs = sample.logprobs = logprobs.numpy()
    # Two tokens: one is weighted by exp(0.26) = 1.297, the other's k3 is exp(-1) - 1 + 1 = 0.368, above 0.2.
    sample = groups[0].samples[0]
    change = np.pad(np.array([-0.26, 1], np.float32), (0, len(sample.token_ids) - 2))
    sample.sampled_logprobs = sample.logprobs = sample.logprobs + change
    stats, num_tokens = learner.update(groups), sum(len(s.token_ids) for g in groups for s in g.samples)
    assert stats["rollout/rejected_fraction"] == pytest.approx(1 / num_tokens)
    assert stats["rollout/importance_weight_max"] == pytest.approx(np.exp(0.26), abs=1e-4)
    assert stats["rollout/importance_weight_mean"] == pytest.approx(1 + (np.exp(0.26) - 1) / (num_tokens - 1), abs=1e-5)


def test_old_log_probs_that_only_the_loss_reads_cost_a_forward_only_where_there_are_several_steps(
    make_learner: Any, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    forward = Texts.logprobs
    monkeypatch.setattr(Texts, "logprobs", lambda self, rows: seen.append(True) or forward(self, rows))
    make_learner().update(groups)
    assert not seen
    make_learner(epochs=2).update(groups)
    assert len(seen) == 1
    early = make_learner()
    early.algorithm.loss_only = frozenset()
    early.update(groups)
    assert len(seen) == 2


def test_gradients_are_scaled_to_the_largest_norm_and_the_norm_before_is_reported(
    make_learner: Any, groups: list[Group], gradients: Any
) -> None:
    free = gradients(make_learner(), groups)
    norm = torch.stack([g.norm() for g in free.values()]).norm().item()
    learner = make_learner(max_grad_norm=norm / 4)
    _close(gradients(learner, groups), {k: g / 4 for k, g in free.items()})
    assert make_learner(max_grad_norm=norm / 4).update(groups)["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_gradient_that_is_not_finite_stops_the_run_and_names_the_samples(
    make_learner: Any, groups: list[Group]
) -> None:
    for sample in groups[1].samples:
        sample.reward = 3e38 * sample.index
    learner = make_learner()
    before = {k: v.clone() for k, v in learner.state()["policy"].items()}
    with pytest.raises(LearnerError, match=r"sample 0 of prompt 'p1', sample 1 of prompt 'p1' \(2 samples"):
        learner.update(groups)
    assert all(torch.equal(v, before[k]) for k, v in learner.state()["policy"].items())


def test_steps_that_are_not_finite_are_counted_where_they_are_left_out(make_learner: Any, groups: list[Group]) -> None:
    groups[1].samples[1].reward = 3e38
    learner = make_learner(skip_nonfinite_steps=True, minibatches=4)
    stats = learner.update(groups)
    assert stats["learner/nonfinite_steps"] == 1 and stats["learner/steps"] == 3
    assert all(v.isfinite().all() for v in learner.state()["policy"].values())


def test_an_infinite_reward_is_refused_with_the_sample_that_has_it(make_learner: Any, groups: list[Group]) -> None:
    groups[2].samples[0].reward = float("inf")
    with pytest.raises(LearnerError, match="sample 0 of prompt 'p2' has reward inf"):
        make_learner().update(groups)


def test_groups_that_minibatches_do_not_divide_are_refused(make_learner: Any, groups: list[Group]) -> None:
    with pytest.raises(LearnerError, match="4 groups cannot be cut into minibatches=3"):
        make_learner(minibatches=3).update(groups)


def test_a_bound_below_the_longest_response_is_refused(make_learner: Any, groups: list[Group]) -> None:
    with pytest.raises(LearnerError, match="12 tokens, more than max_tokens_per_microbatch=11"):
        make_learner(max_tokens_per_microbatch=11).update(groups)


def test_an_algorithm_that_stops_early_leaves_the_rest_out(make_learner: Any, groups: list[Group]) -> None:
    learner = make_learner(epochs=5, learning_rate=0.1)
    learner.algorithm.stop_early = lambda sums: sums["kl"] > 1e-3
    stats = learner.update(groups)
    assert stats["learner/steps"] < 5 and stats["learner/stopped_early"] == 1


def test_reference_log_probs_are_those_of_the_first_weights_for_ever(
    make_learner: Any, make_policy: Any, groups: list[Group]
) -> None:
    learner = make_learner(needs=("old_logprobs", "reference_logprobs"), learning_rate=0.1)
    for _ in range(2):
        learner.update(groups)
    texts = Texts(learner.models, groups)
    rows = list(range(len(texts.members)))
    first = Texts(replace(learner.models, policy=make_policy()), groups).logprobs(rows)
    assert torch.equal(texts.reference_logprobs(rows), first)
    assert (texts.logprobs(rows) - first).abs().max() > 0.1


def test_the_critic_begins_at_zero_learns_returns_and_leaves_the_policy_alone(
    make_learner: Any, groups: list[Group], gradients: Any
) -> None:
    needs = ("old_logprobs", "values")
    learner = make_learner(needs=needs, learning_rate=0, critic_learning_rate=1e-2)
    before = {k: v.clone() for k, v in learner.state()["policy"].items()}
    losses = [learner.update(groups)["critic/loss"] for _ in range(15)]
    returns = [float(sample.reward or 0) for g in groups for sample in g.samples for _ in sample.token_ids]
    assert losses[0] == pytest.approx(np.mean(np.square(returns)), rel=1e-5)
    assert losses[-1] < losses[0] / 4
    assert all(torch.equal(v, before[k]) for k, v in learner.state()["policy"].items())
    policy_only, both = gradients(make_learner(), groups), gradients(make_learner(needs=needs), groups)
    assert all(torch.equal(both[k], v) for k, v in policy_only.items())


def test_entropies_and_their_gradient_reach_the_loss(
    make_learner: Any, plain_model: Any, groups: list[Group], gradients: Any
) -> None:
    def entropy_of(group: Group, tokens: np.ndarray) -> torch.Tensor:
        ids = torch.from_numpy(np.append(group.prompt_ids, tokens))[None]
        logp = plain_model(input_ids=ids).logits[0, len(group.prompt_ids) - 1 : -1].log_softmax(-1)
        return -(logp.exp() * logp).sum()

    num_tokens = sum(len(s.token_ids) for g in groups for s in g.samples)
    total = torch.stack([entropy_of(g, s.token_ids) for g in groups for s in g.samples]).sum() / num_tokens
    (-0.1 * total).backward()
    with_entropy = gradients(make_learner(needs=("old_logprobs", "entropies")), groups)
    without = gradients(make_learner(), groups)
    _close({k: with_entropy[k] - without[k] for k in without}, {k: p.grad for k, p in plain_model.named_parameters()})


def test_bfloat16_weights_learn_at_a_rate_below_their_last_bit(make_learner: Any, groups: list[Group]) -> None:
    learner = make_learner(policy={"dtype": "bfloat16"}, learning_rate=1e-4)
    exact = make_learner(learning_rate=1e-4)
    start = {k: v.clone() for k, v in learner.state()["policy"].items()}
    for _ in range(30):
        learner.update(groups)
        exact.update(groups)
    moved = torch.cat([(v - start[k]).float().flatten() for k, v in learner.state()["policy"].items()])
    wanted = torch.cat([(v - start[k].float()).flatten() for k, v in exact.state()["policy"].items()])
    # 30 steps of 1e-4 are 3e-3, a step is 1e-4; a weight of 0.3 has a spacing of 2e-3 in bfloat16.
    assert torch.nn.functional.cosine_similarity(moved, wanted, dim=0) > 0.7
    assert moved.abs().mean() > 0.5 * wanted.abs().mean()
