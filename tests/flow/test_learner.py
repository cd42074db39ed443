# SPDX-License-Identifier: Apache-2.0
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.config import Config
from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.errors import CheckpointError, ConfigError, FlowError, LearnerError
from m2flow.flow.learner import Learner
from m2flow.flow.stream import Stream
from m2flow.policies.llm import Llm
from m2flow.trainers.packing.texts import token_logprobs


class Mixed(Algorithm):
    """Trains on groups whose rewards differ; replaces the others for ``rounds`` rounds."""

    class Config(Config):
        """Options of the test."""

        rounds: int = 0
        needs: tuple[str, ...] = ("old_logprobs",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = frozenset(config.needs)

    def keep(self, rewards: torch.Tensor) -> bool:
        """Not all equal."""
        return bool(rewards.std(correction=0) > 0)

    @property
    def max_resampling_rounds(self) -> int:
        """As configured."""
        return self.config.rounds

    def advantages(self, batch: Batch) -> Batch:
        """The reward minus one half."""
        centred = torch.where(batch.mask, batch.rewards[:, None] - 0.5, 0.0)
        return replace(batch, advantages=centred, returns=centred)

    def loss(self, batch: Batch, outputs: Outputs, totals: Totals) -> Loss:
        """Ratio times advantage, token mean."""
        assert batch.old_logprobs is not None and batch.advantages is not None
        each = torch.where(batch.mask, (outputs.logprobs - batch.old_logprobs).exp() * batch.advantages, 0.0)
        if batch.reference_logprobs is not None:
            each = each - 0.1 * torch.where(batch.mask, outputs.logprobs - batch.reference_logprobs, 0.0) ** 2
        value = None
        if outputs.values is not None:
            assert batch.returns is not None
            value = torch.where(batch.mask, outputs.values - batch.returns, 0.0).square().sum() / totals.num_tokens
        return Loss(policy=-each.sum() / totals.num_tokens, value=value)


def _sample(index: int, reward: float | None, length: int = 3) -> Sample:
    logprobs = np.full(length, -2.0, np.float32)
    return Sample(
        index=index,
        token_ids=(np.arange(length) * 7 + index + 3) % 40,
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        entropies=-logprobs,
        versions=np.zeros(length, np.int32),
        text="",
        finish_reason="stop",
        reward=reward,
        rewards={"exact": reward},
    )


def _group(name: str, *rewards: float | None) -> Group:
    samples = [_sample(i, reward, length=2 + i) for i, reward in enumerate(rewards)]
    return Group(prompt=Prompt(id=name, text="?"), prompt_ids=np.array([5, 6, 7]), samples=samples)


@pytest.fixture
def make_learner() -> Callable[..., Learner]:
    """A learner of the tiny model; options of the algorithm, the model and the trainer."""

    def make(rounds: int = 0, needs: tuple[str, ...] = ("old_logprobs",), lora: Any = None, **trainer: Any) -> Learner:
        policy = Llm(Llm.Config(model="tiny", lora=lora))
        options = {"name": "local", "learning_rate": 1e-2, **trainer}
        return Learner(policy, algorithm=Mixed.Config(rounds=rounds, needs=needs), trainer=options)

    return make


def _weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in learner.policy.state().items()}


def _equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def test_rewards_and_lengths_are_reported_over_all_that_came(make_learner: Callable[..., Learner]) -> None:
    groups = [_group("a", 1.0, 0.0, None), _group("b", 1.0, 1.0)]
    groups[0].samples[1].finish_reason = "length"
    stats = make_learner().update(groups)
    assert stats["reward/mean"] == 0.75 and stats["reward/exact"] == 0.75
    assert stats["reward/std"] == pytest.approx(np.sqrt(3 / 16))
    assert stats["response/length_mean"] == pytest.approx(14 / 5)
    assert stats["response/truncated_fraction"] == 0.2
    # Group b has equal rewards; of group a two samples with 2 and 3 tokens are trained on.
    assert (stats["learner/groups_kept"], stats["learner/groups_dropped"]) == (1, 1)
    assert stats["learner/samples_without_reward"] == 1 and stats["learner/tokens"] == 5


def test_a_sample_without_a_reward_leaves_the_update_as_if_it_were_not_there(
    make_learner: Callable[..., Learner],
) -> None:
    with_it, without = make_learner(), make_learner()
    with_it.update([_group("a", 1.0, 0.0, None)])
    without.update([_group("a", 1.0, 0.0)])
    assert _equal(_weights(with_it), _weights(without))


def test_an_update_counts_the_version_up_and_favours_the_better_answer(make_learner: Callable[..., Learner]) -> None:
    learner, groups = make_learner(learning_rate=1e-3), [_group("a", 1.0, 0.0)]

    def margin() -> float:
        better, worse = token_logprobs(learner.policy, groups)[0]
        return float(better.mean() - worse.mean())

    before = margin()
    for version in (1, 2, 3):
        assert learner.update(groups)["learner/version"] == version == learner.policy.version
    assert margin() > before + 0.5


@pytest.mark.parametrize("groups", [[], [_group("a", 1.0, 1.0)], [_group("a", None, None)]])
def test_with_nothing_to_train_on_no_step_is_made_and_the_metrics_say_so(
    groups: list[Group], make_learner: Callable[..., Learner]
) -> None:
    learner = make_learner()
    before = _weights(learner)
    stats = learner.update(groups)
    assert stats["learner/skipped"] == 1 and stats["learner/groups_kept"] == 0
    assert learner.policy.version == 0 and _equal(before, _weights(learner))


class _Source:
    """A stream whose further items are prepared."""

    def __init__(self, first: list[Group], later: list[list[Group]]) -> None:
        self.asked: list[int] = []
        self._later: Iterator[list[Group]] = iter(later)
        self.stream = Stream(first, origin="test", refill=self._refill)

    def _refill(self, num_items: int) -> Stream[Group]:
        self.asked.append(num_items)
        return Stream(next(self._later), origin="test")


def test_groups_that_are_not_kept_are_replaced_until_there_are_enough(make_learner: Callable[..., Learner]) -> None:
    first = [_group("a", 1.0, 0.0), _group("b", 1.0, 1.0), _group("c", 0.0, 0.0)]
    later = [[_group("d", 0.0, 0.0), _group("e", 0.0, 1.0)], [_group("f", 1.0, 0.0), _group("g", 0.0, 1.0)]]
    source = _Source(first, later)
    resampled, plain = make_learner(rounds=5), make_learner()
    stats = resampled.update(source.stream)
    assert source.asked == [2, 1] and stats["learner/resampling_rounds"] == 2
    # g is beyond the three that were asked for.
    assert (stats["learner/groups_kept"], stats["learner/groups_dropped"]) == (3, 4)
    plain.update([_group("a", 1.0, 0.0), _group("e", 0.0, 1.0), _group("f", 1.0, 0.0)])
    assert _equal(_weights(resampled), _weights(plain))


def test_resampling_ends_after_its_rounds_with_what_there_is(make_learner: Callable[..., Learner]) -> None:
    source = _Source([_group("a", 1.0, 0.0), _group("b", 1.0, 1.0)], [[_group("c", 1.0, 1.0)]] * 2)
    stats = make_learner(rounds=2).update(source.stream)
    assert source.asked == [1, 1] and stats["learner/groups_kept"] == 1 and stats["learner/skipped"] == 0


def test_resampling_from_a_source_that_cannot_give_more_is_refused(make_learner: Callable[..., Learner]) -> None:
    with pytest.raises(FlowError, match="cannot make more"):
        make_learner(rounds=1).update(Stream([_group("a", 1.0, 1.0)], origin="reward.score"))


def test_a_rollout_at_another_temperature_is_refused(make_learner: Callable[..., Learner]) -> None:
    group = _group("a", 1.0, 0.0)
    group.samples[0].sampled_logprobs = group.samples[0].logprobs - 0.5
    with pytest.raises(LearnerError, match="another temperature than 1"):
        make_learner().update([group])


def test_a_response_longer_than_the_learner_was_told_is_refused(make_learner: Callable[..., Learner]) -> None:
    algorithm, sampling = Mixed.Config(), SamplingConfig(max_new_tokens=2)
    learner = Learner(Llm(Llm.Config(model="tiny")), algorithm=algorithm, sampling=sampling)
    with pytest.raises(LearnerError, match=r"3 tokens, the learner's sampling.max_new_tokens is 2"):
        learner.update([_group("a", 1.0, 0.0)])


def test_a_greedy_rollout_cannot_be_learned_from() -> None:
    with pytest.raises(LearnerError, match="temperature is 0"):
        Learner(Llm(), algorithm=Mixed.Config(), sampling=SamplingConfig(temperature=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainer": "locl"}, "did you mean 'local'"),
        ({"trainer": {"name": "local", "learning_rte": 1.0}}, "learning_rate"),
        ({"trainer": {"name": "local", "betas": (0.9, 1.0)}}, "betas"),
        ({"trainer": 3}, "expected the name of one of the trainers"),
    ],
)
def test_a_mistake_in_the_options_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(Llm(), **{"algorithm": Mixed.Config(), **options})


def test_making_a_learner_loads_no_model() -> None:
    learner = Learner(Llm(Llm.Config(model="tiny")), algorithm=Mixed.Config())
    assert "module" not in vars(learner.policy)


ALL = ("old_logprobs", "reference_logprobs", "values")
SCHEDULE = {"shape": "linear", "warmup_steps": 2, "total_steps": 20}


@pytest.mark.parametrize(
    "options",
    [
        {"needs": ALL, "schedule": SCHEDULE, "epochs": 2, "minibatches": 2},
        {"needs": ALL, "lora": {"rank": 2, "alpha": 4.0}},
    ],
    ids=["all weights", "adapters"],
)
def test_a_resumed_learner_goes_on_bit_for_bit(options: dict[str, Any], make_learner: Callable[..., Learner]) -> None:
    groups = [_group("a", 1.0, 0.0), _group("b", 0.0, 1.0, 1.0)]
    straight = make_learner(**options)
    straight.update(groups)
    saved = copy.deepcopy(straight.state())
    wanted = [straight.update(groups) for _ in range(2)]
    resumed = make_learner(**options)
    resumed.load_state(saved)
    assert resumed.policy.version == 1
    assert [resumed.update(groups) for _ in range(2)] == wanted
    assert _equal(_weights(resumed), _weights(straight))
    assert _equal(resumed.state()["critic"], straight.state()["critic"])


def test_only_adapters_are_trained_and_saved_where_the_model_has_them(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner(lora={"rank": 2, "alpha": 4.0})
    base = learner.policy.module.get_input_embeddings().weight.clone()
    learner.update([_group("a", 1.0, 0.0)])
    assert torch.equal(base, learner.policy.module.get_input_embeddings().weight)
    assert all("lora" in name for name in learner.state()["policy"])


def test_a_checkpoint_of_an_algorithm_without_a_critic_is_refused_where_there_is_one(
    make_learner: Callable[..., Learner],
) -> None:
    state = make_learner().state()
    with pytest.raises(CheckpointError, match="critic"):
        make_learner(needs=ALL).load_state(state)
