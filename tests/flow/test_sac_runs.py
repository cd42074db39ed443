# SPDX-License-Identifier: Apache-2.0
"""SAC in the flow: it learns, resumes bit for bit, and refuses what it cannot learn from."""

from typing import Any

import numpy as np
import pytest
import torch

import m2flow as mf
from m2flow.algorithms.sac import Sac
from m2flow.checkpoint.snapshots import restore, snapshot
from m2flow.errors import ConfigError, LearnerError, ModelError
from m2flow.trainers.control.soft_update import transitions

TRAINER = {"name": "local", "learning_rate": 1e-3, "critic_learning_rate": 1e-3, "epochs": 4, "minibatches": 2}


def parts(*, trainer: Any = TRAINER, squash: bool = True, **options: Any) -> tuple[mf.Env, mf.Rollout, mf.Learner]:
    """Four rows of the toy environment, a small policy and a learner by SAC."""
    env = mf.Env("toy", num_rows=4)
    policy = mf.Mlp(mf.Mlp.Config(hidden=(32, 32), squash=squash, activation="relu"), env.interface)
    algorithm = {"name": "sac", "gamma": 0.9, "start_ticks": 64, "capacity": 10_000, **options}
    return env, mf.Rollout(policy), mf.Learner(policy, algorithm=algorithm, trainer=trainer)


def iterate(env: mf.Env, rollout: mf.Rollout, learner: mf.Learner) -> dict[str, float]:
    """One iteration of 64 ticks."""
    metrics = learner.update(rollout.interact(env, steps=16))
    rollout.load_weights(learner)
    return metrics


def test_the_toy_task_is_learned() -> None:
    env, rollout, learner = parts(tau=0.02, initial_temperature=0.1)
    before = rollout.evaluate(env, 50)
    for _ in range(60):
        iterate(env, rollout, learner)
    after = rollout.evaluate(env, 50)
    assert after["episode/success_at_end"] > max(0.9, before["episode/success_at_end"])


@pytest.mark.parametrize("options", [{}, {"num_critics": 3, "num_targets": 2, "critic_layer_norm": True}])
def test_a_resumed_learner_goes_on_bit_for_bit(options: dict[str, Any]) -> None:
    env, rollout, learner = parts(policy_every=2, **options)
    for _ in range(3):
        iterate(env, rollout, learner)
    saved = restore(snapshot({"learner": learner.state(), "env": env.state()}))
    wanted = [iterate(env, rollout, learner) for _ in range(2)]
    other_env, other_rollout, other = parts(policy_every=2, **options)
    other.load_state(saved["learner"])
    other_env.load_state(saved["env"])
    other_rollout.load_weights(other)
    assert [iterate(other_env, other_rollout, other) for _ in range(2)] == wanted
    assert all(torch.equal(x, other.policy.state()[name]) for name, x in learner.policy.state().items())


def test_nothing_is_learned_before_the_memory_holds_enough() -> None:
    env, rollout, learner = parts(start_ticks=100)
    before = {name: x.clone() for name, x in learner.policy.state().items()}
    first, second = iterate(env, rollout, learner), iterate(env, rollout, learner)
    assert (first["learner/steps"], first["replay/size"]) == (0, 64)
    assert (second["learner/steps"], second["replay/size"]) == (8, 128)
    assert not all(torch.equal(x, learner.policy.state()[name]) for name, x in before.items())


def test_a_batch_in_parts_makes_the_same_number_of_steps() -> None:
    env, rollout, learner = parts(trainer={**TRAINER, "max_tokens_per_microbatch": 7})
    metrics = iterate(env, rollout, learner)
    assert metrics["learner/steps"] == 8
    assert all(np.isfinite(value) for value in metrics.values())


def test_after_an_episodes_last_tick_comes_the_observation_that_it_ended_with() -> None:
    env, rollout, learner = parts()
    t = rollout.interact(env, steps=40)
    found = transitions(t, learner.policy)
    name = next(iter(t.observations))
    place = np.cumsum(t.mask.ravel()).reshape(t.mask.shape) - 1
    assert len(t.ended)
    for number, (tick, row) in enumerate(t.ended.tolist()):
        assert (found[f"next/{name}"][place[tick, row]] == t.final_observations[name][number]).all()
    going_on = [(tick, row) for tick in range(39) for row in range(4) if [tick, row] not in t.ended.tolist()]
    for tick, row in going_on:
        assert (found[f"next/{name}"][place[tick, row]] == t.observations[name][tick + 1, row]).all()
    assert (np.abs(found["actions"]) <= 1).all() and len(found["dones"]) == t.mask.sum()


def test_what_sac_cannot_learn_from_is_refused() -> None:
    with pytest.raises(ModelError, match=r"set policy\.squash"):
        parts(squash=False)
    with pytest.raises(LearnerError, match="choose 'local'"):
        parts(trainer="fsdp")
    env = mf.Env({"name": "gymnasium", "id": "CartPole-v1"}, num_rows=1)
    with pytest.raises(ModelError, match="choices have no values"):
        mf.Learner(mf.Mlp(mf.Mlp.Config(), env.interface), algorithm="sac")
    toy = mf.Env("toy", num_rows=1)
    shared = mf.Mlp(mf.Mlp.Config(squash=True, critic="shared"), toy.interface)
    with pytest.raises(ModelError, match="layers of their own"):
        _ = mf.Learner(shared, algorithm="sac").models
    with pytest.raises(LearnerError, match="makes texts"):
        mf.Learner(mf.Llm("tiny"), algorithm="sac")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_targets": 3}, "num_targets is 3"),
        ({"capacity": 10}, "capacity is 10"),
        ({"learn_temperature": False, "target_entropy": -1.0}, "leave one out"),
    ],
)
def test_options_that_contradict_each_other_are_named(options: dict[str, Any], said: str) -> None:
    problems = Sac.Config(**options).problems()
    assert len(problems) == 1 and said in problems[0]
    with pytest.raises(ConfigError):
        Sac.Config(tau=0.0)
