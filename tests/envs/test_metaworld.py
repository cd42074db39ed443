# SPDX-License-Identifier: Apache-2.0
"""What is particular to Meta-World; what every environment promises is among the contracts."""

from typing import Any

import numpy as np
import pytest

from m2flow.envs.metaworld import Metaworld
from m2flow.errors import SimulatorError
from m2flow.registry import build, choose


@pytest.fixture
def chosen() -> Any:
    def one(**options: Any) -> Any:
        if missing := Metaworld.doctor():
            pytest.skip(missing[0])
        return choose("envs", {"name": "metaworld", **options})

    return one


@pytest.mark.parametrize("task", ["reach-v3", "push-v3", "pick-place-v3", "button-press-v3", "drawer-open-v3"])
def test_the_packages_own_experts_solve_tasks(chosen: Any, task: str) -> None:
    """They read the goal and both objects out of the state, so that what is observed must be right."""
    policies: Any = pytest.importorskip("metaworld.policies")
    expert = policies.ENV_POLICY_MAP[task]()
    env = build(chosen(task=task), 2)
    seen = env.reset([0, 1], [5, 6])["state"]
    solved = np.zeros(2, bool)
    for _ in range(200):
        actions = np.stack([np.clip(expert.get_action(state.astype(np.float64)), -1, 1) for state in seen])
        outcome = env.step(actions.astype(np.float32))
        seen, solved = outcome.observations["state"], solved | outcome.success
        assert (outcome.rewards <= 1).all()
    assert solved.all()
    env.close()


def test_of_several_tasks_each_episode_draws_one(chosen: Any) -> None:
    env = build(chosen(task="MT10"), 1)
    tasks = [int(env.reset([0], [seed])["task"][0].argmax()) for seed in range(12)]
    assert len(set(tasks)) > 3
    assert env.reset([0], [3])["task"][0].argmax() == tasks[3]
    assert env.step(np.zeros((1, 4), np.float32)).observations["task"].sum() == 1
    env.close()


def test_a_camera_sees_beside_the_hand(chosen: Any) -> None:
    env = build(chosen(observations="camera", image_size=48), 1)
    try:
        seen = env.reset([0], [0])
    except SimulatorError as error:
        pytest.skip(str(error))
    assert seen["corner2"].shape == (1, 48, 48, 3) and seen["state"].shape == (1, 4)
    assert env.render(0).shape == (480, 480, 3)
    env.close()


def test_a_task_that_is_not_there_is_said(chosen: Any) -> None:
    with pytest.raises(SimulatorError, match="no task 'fly-v3'"):
        build(chosen(task="fly-v3"), 1)
