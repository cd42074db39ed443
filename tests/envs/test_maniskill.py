# SPDX-License-Identifier: Apache-2.0
"""What is particular to ManiSkill; what every environment promises is among the contracts."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from m2flow.envs import maniskill
from m2flow.errors import SimulatorError
from m2flow.registry import build, choose


@pytest.fixture
def chosen() -> Any:
    def one(**options: Any) -> Any:
        if missing := maniskill.Maniskill.doctor():
            pytest.skip(missing[0])
        return choose("envs", {"name": "maniskill", **options})

    return one


def test_a_camera_is_an_image_beside_the_joints(chosen: Any) -> None:
    env = build(chosen(observations="camera", image_size=32), 1)
    seen = env.reset([0], [0])
    image = next(spec for spec in env.interface.observations if spec.is_image)
    assert image.shape == (32, 32, 3) and seen[image.name].min() < seen[image.name].max()
    # Nine joints and their velocities, without the cube: that is to be seen.
    assert seen["state"].shape[1] < build(chosen(), 1).interface.observations[0].shape[0]
    env.close()


def test_an_episode_goes_on_after_success_unless_it_is_to_end(chosen: Any) -> None:
    """The cube is put on the goal by hand, which the task then calls solved."""
    ends = []
    for ends_on_success in (False, True):
        env = build(chosen(ends_on_success=ends_on_success), 1)
        env.reset([0], [0])
        task = env._scenes[0].unwrapped
        task.obj.set_pose(task.goal_region.pose)
        outcome = env.step(np.zeros((1, 8), np.float32))
        assert outcome.success is not None and outcome.success.all() and not outcome.truncated.any()
        ends.append(bool(outcome.terminated[0]))
        env.close()
    assert ends == [False, True]


def test_a_shorter_limit_truncates(chosen: Any) -> None:
    env = build(chosen(max_episode_ticks=2), 1)
    env.reset([0], [0])
    assert [bool(env.step(np.zeros((1, 8), np.float32)).truncated[0]) for _ in range(2)] == [False, True]
    env.close()


def test_what_a_task_does_not_have_is_said(chosen: Any) -> None:
    with pytest.raises(SimulatorError, match="cannot make 'NoSuchTask-v1'"):
        build(chosen(id="NoSuchTask-v1"), 1)
    with pytest.raises(SimulatorError, match="fly_away"):
        build(chosen(control_mode="fly_away"), 1)


def test_a_missing_package_is_a_mistake_in_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maniskill.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'm2flow[maniskill]'" in choose("envs", "maniskill").problems()[0]
    with pytest.raises(SimulatorError, match=r"pip install 'm2flow\[maniskill\]'"):
        build(choose("envs", "maniskill"), 1)


def test_the_doctor_says_how_a_device_to_draw_with_is_had(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([sys.executable], 1, "", "RuntimeError: failed to find a rendering device")
    monkeypatch.setattr(maniskill.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(maniskill.subprocess, "run", lambda *args, **kwargs: failed)
    maniskill._drawing_error.cache_clear()
    (said,) = maniskill.Maniskill.doctor()
    maniskill._drawing_error.cache_clear()
    assert "failed to find a rendering device" in said and "apt install" in said
