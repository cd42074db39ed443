# SPDX-License-Identifier: Apache-2.0
"""What holds for every trainer in the directory, with every algorithm, on the model that ships."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from m2flow.algorithms.base import Algorithm
from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.errors import LearnerError
from m2flow.flow.learner import Learner
from m2flow.flow.rollout import Rollout
from m2flow.policies.llm import Llm
from m2flow.registry import load, names
from m2flow.trainers.base import Settings
from m2flow.trainers.packing.texts import Texts, batch_of, token_logprobs

ALGORITHMS = [name for name in names("algorithms") if issubclass(load("algorithms", name), Algorithm)]
TRAINERS = names("trainers")
TOLERANCE = 1e-4
"""Of a change of weights, as a part of the largest change. Sums of single precision in another order differ by 1e-6 of
a gradient, and later steps start from weights that differ already; a row lost or counted twice is above 1e-2."""
MAKE, WEIGHTS = Callable[..., Learner], Callable[[Learner], dict[str, Tensor]]
FEW = settings(
    max_examples=3,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""An example costs seconds: what fails is reported as it was drawn."""
of_every_trainer = pytest.mark.parametrize("trainer", TRAINERS)
pytestmark = pytest.mark.usefixtures("group_of_one")
SHAPES = st.lists(
    st.tuples(st.integers(1, 5), st.lists(st.integers(1, 6), min_size=1, max_size=3)), min_size=2, max_size=4
).filter(lambda shapes: len(shapes) % 2 == 0)


def _sample(index: int, length: int, rng: np.random.Generator) -> Sample:
    logprobs = -rng.exponential(size=length).astype(np.float32)
    return Sample(
        index=index,
        token_ids=rng.integers(3, 90, length),
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        entropies=np.ones(length, np.float32),
        versions=np.zeros(length, np.int32),
        text="",
        finish_reason="stop" if rng.random() < 0.7 else "length",
        reward=float(rng.integers(0, 3)),
    )


def make_groups(shapes: Sequence[tuple[int, Sequence[int]]], *, seed: int = 0) -> list[Group]:
    """Groups of random texts; a shape is a prompt's length and its responses'."""
    rng = np.random.default_rng(seed)
    return [
        Group(
            prompt=Prompt(id=f"p{i}", text="?"),
            prompt_ids=rng.integers(3, 90, prompt),
            samples=[_sample(k, length, rng) for k, length in enumerate(lengths)],
        )
        for i, (prompt, lengths) in enumerate(shapes)
    ]


GROUPS = [(4, [6, 3, 5]), (5, [2, 2, 4]), (3, [2]), (2, [5, 1, 4])]


def asking_for_all(name: str, **options: Any) -> Any:
    """The algorithm's Config with a reference, entropies and weights for the rollout, where it has such options."""
    config: Any = load("algorithms", name).Config
    wanted = {"kl_coef": 0.1, "entropy_coef": 0.1, "importance_cap": 1.5, "resampling_rounds": 0, **options}
    return config(**{option: value for option, value in wanted.items() if option in config.model_fields})


def require_equal_changes(ours: dict[str, Tensor], wanted: dict[str, Tensor], *, before: dict[str, Tensor]) -> None:
    """Weights moved alike, and did move."""
    assert ours.keys() == wanted.keys() == before.keys()
    largest = max((wanted[name] - x).abs().max().item() for name, x in before.items())
    assert largest > 1e-5
    apart = {name: (ours[name] - x).abs().max().item() / largest for name, x in wanted.items()}
    assert max(apart.values()) < TOLERANCE, max(apart, key=lambda name: apart[name])


@of_every_trainer
@given(
    shapes=SHAPES,
    name=st.sampled_from(ALGORITHMS),
    bound=st.integers(11, 40),
    seed=st.integers(0, 99),
)
@FEW
def test_weights_do_not_depend_on_micro_batches_recomputation_or_order_of_arrival(
    trainer: str,
    shapes: Any,
    name: str,
    bound: int,
    seed: int,
    make_learner: MAKE,
    weights_of: WEIGHTS,
) -> None:
    groups, shuffle = make_groups(shapes, seed=seed), random.Random(seed)
    options = {"epochs": 2, "minibatches": 2}
    plain = make_learner(trainer, asking_for_all(name), **options)
    other = make_learner(
        trainer,
        asking_for_all(name),
        max_tokens_per_microbatch=bound,
        activation_checkpointing=True,
        **options,
    )
    before = weights_of(plain)
    shuffled = [replace(g, samples=shuffle.sample(g.samples, len(g.samples))) for g in groups]
    wanted, found = plain.update(groups), other.update(shuffle.sample(shuffled, len(groups)))
    assert wanted["learner/steps"] == found["learner/steps"]
    # DAPO drops a group whose rewards are all equal; with both, nothing would be left to compare.
    assume(wanted["learner/steps"])
    require_equal_changes(weights_of(other), weights_of(plain), before=before)


@of_every_trainer
def test_groups_of_one_prompt_with_the_same_texts_and_other_rewards_may_come_in_any_order(
    trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    (group,) = make_groups([(4, [6, 3, 5])])
    other = replace(group, samples=[replace(s, reward=float(s.index)) for s in group.samples])
    learners = [make_learner(trainer, minibatches=2) for _ in range(2)]
    for learner, groups in zip(learners, ([group, other], [other, group]), strict=True):
        assert learner.update(groups)["policy/grad_norm"] > 0
    first, second = map(weights_of, learners)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def changed_by(learner: Learner, groups: Sequence[Group], parts: Sequence[Group]) -> dict[str, Any]:
    """Metrics of an update whose rows are packed as ``parts`` and belong together as in ``groups``."""
    texts = Texts(learner.models, parts)
    return learner.trainer.update(texts, batch_of(groups), settings=Settings(max_tokens=8))


@of_every_trainer
def test_weights_do_not_depend_on_whether_samples_share_their_prompt_or_on_the_order_in_the_row(
    trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    groups = make_groups(GROUPS)
    shared, apart, turned = (make_learner(trainer, asking_for_all("ppo")) for _ in range(3))
    before = weights_of(shared)
    changed_by(shared, groups, groups)
    changed_by(apart, groups, [replace(g, samples=[s]) for g in groups for s in g.samples])
    back = [replace(g, samples=g.samples[::-1]) for g in reversed(groups)]
    changed_by(turned, back, back)
    for learner in (apart, turned):
        require_equal_changes(weights_of(learner), weights_of(shared), before=before)


@pytest.mark.parametrize(("name", "trainer"), [*zip(ALGORITHMS, itertools.cycle(TRAINERS))])
def test_at_learning_rate_zero_nothing_is_clipped_and_the_divergence_is_exactly_zero(
    name: str, trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    options = {"learning_rate": 0, "critic_learning_rate": 0, "epochs": 2, "minibatches": 2}
    learner = make_learner(trainer, asking_for_all(name), max_tokens_per_microbatch=16, **options)
    before = weights_of(learner)
    stats = learner.update(make_groups(GROUPS))
    watched = {key: value for key, value in stats.items() if "clip_fraction" in key or key.endswith("approx_kl")}
    assert {"policy/clip_fraction", "policy/approx_kl"} <= watched.keys() and stats["learner/steps"] == 4
    assert watched == dict.fromkeys(watched, 0.0)
    assert all(torch.equal(x, before[key]) for key, x in weights_of(learner).items())


def with_rewards(groups: Sequence[Group], reward: float | None) -> list[Group]:
    """The same texts, all of which have this reward."""
    return [replace(g, samples=[replace(s, reward=reward) for s in g.samples]) for g in groups]


@of_every_trainer
@pytest.mark.parametrize("reward", [None, 1.0], ids=["no reward", "groups of equal rewards are filtered"])
def test_nothing_to_train_on_changes_nothing_at_all(
    trainer: str, reward: float | None, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    learner, groups = make_learner(trainer, asking_for_all("dapo")), make_groups(GROUPS)
    learner.update(groups)
    before, state = weights_of(learner), learner.trainer.state()
    empty = [g for g in with_rewards(groups, reward) if len(g.samples) > 1]
    stats = learner.update(empty)
    assert (stats["learner/skipped"], stats["learner/groups_kept"]) == (1, 0)
    assert learner.policy.version == 1 and learner.trainer.state()["steps"] == state["steps"] == 1
    assert all(torch.equal(x, before[name]) for name, x in weights_of(learner).items())


def cut_short(groups: Sequence[Group], reason: Any) -> list[Group]:
    """The same texts, which all ended in one way."""
    return [replace(g, samples=[replace(s, finish_reason=reason) for s in g.samples]) for g in groups]


@of_every_trainer
def test_a_batch_of_nothing_but_cut_responses_makes_no_step_where_those_are_left_out(
    trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    groups = cut_short(make_groups(GROUPS), "length")
    learner = make_learner(trainer, asking_for_all("dapo", overlong_filter=True), minibatches=2)
    before = weights_of(learner)
    stats = learner.update(groups)
    assert (stats["learner/steps"], stats["learner/steps_without_tokens"]) == (0, 2)
    assert learner.policy.version == 0 and stats["response/truncated_fraction"] == 1
    assert all(torch.equal(x, before[name]) for name, x in weights_of(learner).items())


@of_every_trainer
def test_a_batch_of_nothing_but_cut_responses_trains_as_any_other_elsewhere(
    trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    groups, (ended, cut) = make_groups(GROUPS), (make_learner(trainer) for _ in range(2))
    before = weights_of(ended)
    for learner, reason in ((ended, "stop"), (cut, "length")):
        learner.update(cut_short(groups, reason))
    require_equal_changes(weights_of(cut), weights_of(ended), before=before)


@of_every_trainer
def test_a_response_without_a_token_is_as_if_it_were_not_there(
    trainer: str, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    groups = make_groups(GROUPS)
    more = [replace(g, samples=[*g.samples, _sample(9, 0, np.random.default_rng(0))]) for g in groups]
    one, other = (make_learner(trainer) for _ in range(2))
    before = weights_of(one)
    one.update(groups)
    other.update(more)
    require_equal_changes(weights_of(other), weights_of(one), before=before)
    stats = other.update([replace(g, samples=[s for s in g.samples if not len(s.token_ids)]) for g in more])
    assert (stats["learner/steps"], stats["learner/steps_without_tokens"]) == (0, 1)


@of_every_trainer
@given(bad=st.sets(st.integers(0, 9), min_size=1, max_size=3), bound=st.sampled_from([11, 64]))
@settings(FEW, max_examples=2)
def test_a_loss_that_is_not_finite_names_the_samples_and_makes_no_step(
    trainer: str, bad: set[int], bound: int, make_learner: MAKE, weights_of: WEIGHTS
) -> None:
    groups = make_groups(GROUPS)
    members = [(g, s) for g in groups for s in g.samples]
    for row in bad:
        members[row][1].sampled_logprobs = np.full_like(members[row][1].sampled_logprobs, np.nan)
    options = {"max_tokens_per_microbatch": bound, "minibatches": 1}
    learner = make_learner(trainer, asking_for_all("grpo"), **options)
    before = weights_of(learner)
    expected = [f"sample {s.index} of prompt '{g.prompt.id}'" for row, (g, s) in enumerate(members) if row in bad]
    with pytest.raises(LearnerError) as raised:
        learner.update(groups)
    assert f"comes from {', '.join(expected)} ({len(bad)} samples in all)" in str(raised.value)
    assert all(torch.equal(x, before[name]) for name, x in weights_of(learner).items())
    lenient = make_learner(trainer, asking_for_all("grpo"), skip_nonfinite_steps=True, **options)
    stats = lenient.update(groups)
    assert (stats["learner/nonfinite_steps"], stats["learner/steps"]) == (1, 0)
    assert all(torch.equal(x, before[name]) for name, x in weights_of(lenient).items())


SAMPLING = SamplingConfig(max_new_tokens=6, temperature=0.7)


@of_every_trainer
def test_the_learner_agrees_with_the_rollout_whose_weights_it_has_and_says_so_where_it_does_not(
    trainer: str, make_learner: MAKE
) -> None:
    learner = make_learner(trainer, sampling=SAMPLING, learning_rate=1e-2)
    rollout = Rollout(Llm(Llm.Config(model="tiny")), sampling=SAMPLING, seed=3)
    prompts = [Prompt(id=str(i), text=f"{i}+{i}=") for i in range(3)]
    groups = list(rollout.generate(prompts, samples_per_prompt=4))
    for group in groups:
        for sample in group.samples:
            sample.reward = float(sample.index)
    stats = learner.update(groups)
    assert stats["rollout/logprob_diff_max"] < 1e-4 and stats["rollout/kl"] < 1e-8
    stale = learner.update(groups)
    assert stale["rollout/logprob_diff_max"] > 1e-2


@of_every_trainer
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_difference_from_the_rollout_is_measured_on_tokens_that_are_left_out_of_the_loss_too(
    trainer: str, epochs: int, make_learner: MAKE
) -> None:
    learner, groups = (
        make_learner(trainer, asking_for_all("grpo", reject=("token_k3=0.3",)), epochs=epochs),
        make_groups(GROUPS),
    )
    for group, found in zip(groups, token_logprobs(learner.policy, groups), strict=True):
        for sample, logprobs in zip(group.samples, found, strict=True):
            sample.logprobs = sample.sampled_logprobs = logprobs.numpy()
    off = groups[1].samples[2]
    off.logprobs = off.sampled_logprobs = off.sampled_logprobs - np.float32(3)
    stats = learner.update(groups)
    num_tokens = sum(len(s.token_ids) for g in groups for s in g.samples)
    assert stats["rollout/logprob_diff_max"] == pytest.approx(3, abs=1e-4)
    assert stats["rollout/logprob_diff_mean"] == pytest.approx(3 * len(off.token_ids) / num_tokens, abs=1e-4)
