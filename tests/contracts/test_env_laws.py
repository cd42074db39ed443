# SPDX-License-Identifier: Apache-2.0
"""What every environment file promises; a simulator that this machine lacks something for is skipped by its doctor."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from m2flow.envs.base import Env, Observations
from m2flow.envs.stepping.parallel import ParallelStepper
from m2flow.envs.stepping.serial import SerialStepper
from m2flow.registry import build, choose, names

Make = Callable[[int], Env]


def _config(name: str) -> Any:
    if missing := choose("envs", name).owner.doctor():
        pytest.skip(missing[0])
    return choose("envs", name)


@pytest.fixture(params=names("envs"))
def config(request: pytest.FixtureRequest) -> Any:
    return _config(request.param)


@pytest.fixture
def make(config: Any) -> Iterator[Make]:
    made: list[Env] = []

    def one(num_rows: int) -> Env:
        made.append(build(config, num_rows))
        return made[-1]

    yield one
    for env in made:
        env.close()


def actions_for(env: Env, *, seed: int, num_ticks: int = 1) -> np.ndarray:
    return env.interface.action.fake(np.random.default_rng(seed), (num_ticks, env.num_rows))


def require_equal(ours: Observations, wanted: Observations) -> None:
    assert ours.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(ours[name], array)


def test_what_is_observed_is_as_its_spec_says(make: Make) -> None:
    env = make(2)
    seen = env.reset([0, 1], [3, 4])
    outcome = env.step(actions_for(env, seed=0)[0])
    for observations in (seen, outcome.observations):
        assert set(observations) == {spec.name for spec in env.interface.observations}
        for spec in env.interface.observations:
            array = observations[spec.name]
            assert array.shape == (2, *spec.shape) and array.dtype == np.dtype(spec.dtype)
            assert (array >= spec.low).all() and (array <= spec.high).all()
    assert outcome.rewards.shape == (2,) and outcome.rewards.dtype == np.float32
    for flags in (outcome.terminated, outcome.truncated, outcome.success):
        assert flags is None or (flags.shape == (2,) and flags.dtype == bool)


def test_equal_seeds_and_actions_make_equal_episodes_whatever_the_other_rows_do(make: Make) -> None:
    env, alone = make(3), make(1)
    drawn = actions_for(env, seed=1, num_ticks=8)
    env.reset([0, 1, 2], [7, 5, 6])
    for actions in drawn:
        env.step(actions)
    seen = env.reset([1], [7])
    require_equal(alone.reset([0], [7]), seen)
    for actions in drawn:
        ours, wanted = env.step(actions), alone.step(actions[1:2])
        require_equal({name: array[1:2] for name, array in ours.observations.items()}, wanted.observations)
        assert ours.rewards[1] == wanted.rewards[0]


def test_other_seeds_make_other_episodes(make: Make) -> None:
    env = make(2)
    seen = env.reset([0, 1], [1, 2])
    assert any((array[0] != array[1]).any() for array in seen.values())


def test_rows_that_are_not_reset_go_on(make: Make) -> None:
    env, undisturbed = make(2), make(2)
    drawn = actions_for(env, seed=2, num_ticks=4)
    for one in (env, undisturbed):
        one.reset([0, 1], [1, 2])
    for number, actions in enumerate(drawn):
        if number == 2:
            env.reset([0], [9])
        ours, wanted = env.step(actions), undisturbed.step(actions)
        require_equal(
            {name: array[1:] for name, array in ours.observations.items()},
            {name: array[1:] for name, array in wanted.observations.items()},
        )


def test_an_episode_ends_at_its_limit_at_the_latest_and_for_one_reason(make: Make) -> None:
    env = make(1)
    limit = env.interface.max_episode_ticks
    assert limit is not None
    env.reset([0], [0])
    for number, actions in enumerate(actions_for(env, seed=3, num_ticks=limit), start=1):
        outcome = env.step(actions)
        assert not (outcome.terminated & outcome.truncated).any()
        if outcome.terminated.any():
            return
        assert outcome.truncated.item() == (number == limit)


def test_a_row_is_drawn_for_people(make: Make) -> None:
    env = make(2)
    env.reset([0, 1], [0, 1])
    picture = env.render(1)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert picture.min() < picture.max()


def test_closing_twice_is_no_error(make: Make) -> None:
    env = make(1)
    env.reset([0], [0])
    env.close()
    env.close()


def test_worker_processes_step_it_bit_for_bit_as_one_process_does(config: Any) -> None:
    here = SerialStepper(lambda num_rows: build(config, num_rows), num_rows=2, num_parts=1, group_size=1)
    there = ParallelStepper(config, num_rows=2, num_workers=2)
    rng = np.random.default_rng(4)
    try:
        require_equal(there.reset(11)[0], here.reset(11)[0])
        for _ in range(30):
            actions = here.interface.action.fake(rng, (2,))
            for stepper in (here, there):
                stepper.send(0, actions)
            wanted, ours = here.receive(0), there.receive(0)
            require_equal(ours.observations, wanted.observations)
            np.testing.assert_array_equal(ours.rewards, wanted.rewards)
            assert ours.episodes == wanted.episodes
    finally:
        here.close()
        there.close()
