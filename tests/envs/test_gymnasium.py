# SPDX-License-Identifier: Apache-2.0
"""Gymnasium's environments, compared with Gymnasium's own stepping."""

from typing import Any

import numpy as np
import pytest

from m2flow.envs.gymnasium import Gymnasium
from m2flow.errors import SimulatorError
from m2flow.registry import build, choose

gymnasium: Any = pytest.importorskip("gymnasium")


def env(name: str = "CartPole-v1", num_rows: int = 2, **options: Any) -> Gymnasium:
    return build(choose("envs", {"name": "gymnasium", "id": name, **options}), num_rows)


def test_the_discrete_actions_of_cartpole_and_its_limits_are_read():
    interface = env().interface
    assert interface.action.is_discrete and interface.action.num_values == 2
    (state,) = interface.observations
    assert (state.name, state.shape, state.dtype) == ("state", (4,), "float32")
    assert interface.max_episode_ticks == 500
    assert env(max_episode_ticks=9).interface.max_episode_ticks == 9


def test_states_rewards_and_ends_are_those_of_gymnasium_itself():
    ours, theirs = env(num_rows=1), gymnasium.make("CartPole-v1")
    seen, _ = theirs.reset(seed=5)
    np.testing.assert_array_equal(ours.reset([0], [5])["state"][0], seen)
    for _ in range(200):
        outcome = ours.step(np.array([1]))
        seen, reward, terminated, truncated, _ = theirs.step(1)
        np.testing.assert_array_equal(outcome.observations["state"][0], seen)
        assert (outcome.rewards[0], outcome.terminated[0], outcome.truncated[0]) == (reward, terminated, truncated)
        if terminated:
            return
    pytest.fail("pushing a cart to one side must fell its pole")


def test_a_limit_truncates_and_does_not_terminate():
    ours = env("Pendulum-v1", max_episode_ticks=2)
    ours.reset([0, 1], [0, 1])
    outcomes = [ours.step(np.zeros((2, 1), np.float32)) for _ in range(2)]
    assert not outcomes[0].truncated.any() and outcomes[1].truncated.all() and not outcomes[1].terminated.any()


def test_continuous_limits_are_single_numbers_where_they_are_equal_and_else_one_for_each_entry():
    interface = env("Pendulum-v1").interface
    assert (interface.action.low, interface.action.high) == (-2.0, 2.0)
    assert interface.observations[0].high == (1.0, 1.0, 8.0)


def test_an_environment_that_gymnasium_does_not_know_is_named_in_the_error():
    with pytest.raises(SimulatorError, match=r"cannot make 'CartPool-v1'"):
        env("CartPool-v1")


def test_spaces_that_are_no_arrays_are_refused_by_name():
    with pytest.raises(SimulatorError, match=r"'state' of Blackjack-v1 is a Tuple"):
        env("Blackjack-v1")


def test_success_is_what_the_environment_says_of_it():
    class Solved(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict(
            {"goal": gymnasium.spaces.Box(-1, 1, (2,)), "kind": gymnasium.spaces.Discrete(3, start=4)}
        )
        action_space = gymnasium.spaces.Discrete(2, start=-1)
        metadata = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def __init__(self, render_mode: str) -> None:
            self.render_mode = render_mode

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"goal": np.zeros(2, np.float32), "kind": np.int64(5)}, {}

        def step(self, action: Any) -> Any:
            goal = np.zeros(2, np.float32)
            return {"goal": goal, "kind": np.int64(6)}, float(action), False, False, {"is_success": action == 0}

    gymnasium.register("Solved-v0", entry_point=lambda **options: Solved(**options), disable_env_checker=True)
    ours = env("Solved-v0")
    ours.reset([0, 1], [0, 0])
    # Choices are counted from 0, the environment's own from -1.
    outcome = ours.step(np.array([0, 1]))
    assert outcome.success is not None and outcome.success.tolist() == [False, True]
    assert outcome.rewards.tolist() == [-1.0, 0.0]
    assert outcome.observations["kind"].tolist() == [6, 6]
    assert [(s.name, s.low, s.high) for s in ours.interface.observations][1] == ("kind", 4.0, 6.0)


def test_a_picture_is_drawn_where_the_environment_can():
    pytest.importorskip("pygame")
    ours = env()
    ours.reset([0, 1], [0, 1])
    assert ours.render(1).dtype == np.uint8 and ours.render(1).shape[2] == 3
