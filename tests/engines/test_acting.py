# SPDX-License-Identifier: Apache-2.0
"""Actions drawn in environments: what is recorded, what it depends on, and what is counted."""

from typing import Any

import numpy as np
import pytest
import torch

from m2flow.data.trajectories import Trajectories
from m2flow.engines.acting import Acting
from m2flow.envs.stepping.serial import SerialStepper
from m2flow.envs.toy import Toy
from m2flow.errors import EngineError
from m2flow.policies.llm import Llm
from m2flow.policies.mlp import Mlp


def stepper(num_rows: int = 6, *, parts: int = 1, group_size: int = 1, **options: Any) -> SerialStepper:
    config = Toy.Config(**{"max_episode_ticks": 7, **options})
    found = SerialStepper(lambda n: Toy(config, n), num_rows=num_rows, num_parts=parts, group_size=group_size)
    found.reset(3)
    return found


def engine(seed: int = 0) -> Acting:
    return Acting(Acting.Config(), Mlp(Mlp.Config(hidden=(8,)), stepper().interface, seed=seed))


def assert_same(found: Trajectories, wanted: Trajectories, *, rows: slice = slice(None)) -> None:
    for name in ("actions", "logprobs", "rewards", "terminated", "truncated", "mask"):
        a, b = getattr(found, name), getattr(wanted, name)[:, rows]
        # A product of another number of rows may round otherwise.
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=name)
    for name, array in found.observations.items():
        np.testing.assert_allclose(array, wanted.observations[name][:, rows], atol=1e-5)


def test_the_learner_finds_the_log_probs_that_were_drawn_with() -> None:
    acting = engine()
    found = acting.interact(stepper(), steps=20)
    seen = {name: torch.from_numpy(array) for name, array in found.observations.items()}
    logprobs, _ = acting.policy.evaluate(seen, torch.from_numpy(found.actions))
    np.testing.assert_allclose(logprobs.detach(), found.logprobs, atol=1e-5)


def test_a_row_does_not_depend_on_parts_nor_on_other_rows() -> None:
    whole = engine().interact(stepper(), steps=20)
    for parts in (2, 6):
        assert_same(engine().interact(stepper(parts=parts), steps=20), whole)
    assert_same(engine().interact(stepper(2), steps=20), whole, rows=slice(0, 2))


def test_two_calls_go_on_where_one_would() -> None:
    rows = stepper(parts=2)
    first, second = engine().interact(rows, steps=8), engine().interact(rows, steps=12)
    whole = engine().interact(stepper(), steps=20)
    np.testing.assert_allclose(np.concatenate([first.actions, second.actions]), whole.actions, atol=1e-5)
    np.testing.assert_allclose(first.last_observations["position"], second.observations["position"][0])
    assert len(first.episodes) + len(second.episodes) == len(whole.episodes) == 12


def test_each_end_of_an_episode_has_the_observation_it_ended_with() -> None:
    found = engine().interact(stepper(parts=3), steps=15)
    assert found.ended.tolist() == [[6, row] for row in range(6)] + [[13, row] for row in range(6)]
    assert found.truncated[6].all() and not found.terminated.any()
    velocity, push = found.observations["velocity"][6], np.clip(found.actions[6], -1, 1)
    pushed = velocity + 0.1 * (4 * push - velocity)
    np.testing.assert_allclose(found.final_observations["velocity"][:6], pushed, atol=1e-5)
    assert (found.observations["velocity"][7] == 0).all()


def test_whole_episodes_are_collected_and_what_follows_them_is_masked() -> None:
    # Any push reaches a goal this near sooner or later, at its own time in each row.
    found = engine().interact(stepper(4, max_episode_ticks=50, tick_s=0.5), episodes=2)
    assert found.whole_episodes and len(found.episodes) == 8
    per_row = [[e.num_ticks for e in found.episodes if e.row == row] for row in range(4)]
    assert found.mask.sum(0).tolist() == [sum(ticks) for ticks in per_row]
    assert all(found.mask[: sum(ticks), row].all() for row, ticks in enumerate(per_row))
    assert len(found.mask) == max(map(sum, per_row))


def test_rows_of_a_group_begin_alike_and_act_differently() -> None:
    found = engine().interact(stepper(6, group_size=3), episodes=1)
    begun = found.observations["position"][0]
    assert (begun[:3] == begun[0]).all() and not (begun[:3] == begun[3:]).any()
    assert found.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(np.unique(found.actions[0], axis=0)) == 6


def test_an_evaluation_counts_each_episode_once_however_long_it_is() -> None:
    rows = stepper(4, max_episode_ticks=30, tick_s=0.5, parts=2)
    found = engine().evaluate(rows, episodes=10)
    assert sorted(e.row for e in found) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert len({e.seed for e in found}) == 10
    again = stepper(4, max_episode_ticks=30, tick_s=0.5)
    assert sorted(engine().evaluate(again, episodes=10), key=lambda e: e.seed) == sorted(found, key=lambda e: e.seed)


def test_what_an_engine_does_not_do_is_said() -> None:
    with pytest.raises(EngineError, match=r"makes no texts: call rollout\.interact"):
        engine().generate([], samples_per_prompt=1, sampling=None, seed=0, iteration=0)  # pyright: ignore
    with pytest.raises(EngineError, match="for control policies, not for 'llm'"):
        Acting(Acting.Config(), Llm(Llm.Config(model="tiny")))
    endless = stepper()
    endless.interface = type(endless.interface)(
        observations=endless.interface.observations, action=endless.interface.action
    )
    with pytest.raises(EngineError, match="nothing limits them: set the env's max_episode_ticks"):
        engine().interact(endless, episodes=1)


def test_weights_that_moved_on_unnoticed_stop_the_rollout() -> None:
    acting = engine()
    acting.interact(stepper(), steps=1)
    acting.policy.version += 1
    with pytest.raises(EngineError, match=r"call rollout\.load_weights"):
        acting.interact(stepper(), steps=1)
