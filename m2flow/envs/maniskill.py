# SPDX-License-Identifier: Apache-2.0
"""Manipulation tasks of ManiSkill3, simulated on the CPU: states or cameras in, joint or end-effector targets out."""

import functools
import importlib
import importlib.util
import logging
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from m2flow.config import Config
from m2flow.envs.base import Env, Observations, Outcome, spec_of, stacked
from m2flow.errors import SimulatorError
from m2flow.spec import Interface, Spec

_INSTALL = "the package 'mani_skill' is not installed: pip install 'm2flow[maniskill]'"
_NO_DEVICE = (
    "ManiSkill finds no device to draw with, which it needs for states too ({}). Without an NVIDIA driver Mesa 25 or "
    "newer draws on the CPU. Debian 12: apt install -t bookworm-backports mesa-vulkan-drivers, with that suite among "
    "apt's sources; newer systems: apt install mesa-vulkan-drivers. Where other drivers get in its way: "
    "export VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/lvp_icd.json"
)


class Maniskill(Env):
    """Copies of one task, each a scene of its own, stepped one after another: several in a process do not interact.

    An episode goes on to its limit when the task is solved, as in ManiSkill's own evaluation, unless
    ``ends_on_success``: a policy is to arrive and stay.
    """

    is_slow = True

    class Config(Config):
        """Options of ``maniskill``."""

        headline = "id"

        id: str = "PushCube-v1"
        """The task, as ManiSkill registers it."""
        observations: Literal["state", "camera"] = "state"
        """state: the robot's joints and the poses of all objects. camera: pictures, and the robot's joints."""
        image_size: int = Field(default=128, ge=16)
        """Height and width of pictures in pixels."""
        control_mode: str = "pd_joint_delta_pos"
        """What an action sets, as the robot's controllers are named."""
        reward_mode: Literal["normalized_dense", "dense", "sparse"] = "normalized_dense"
        """How a tick is rewarded; normalised is at most 1."""
        ends_on_success: bool = False
        """End the episode when the task is solved."""
        max_episode_ticks: int | None = Field(default=None, ge=1)
        """After so many ticks an episode is truncated. None: as it is registered."""
        options: dict[str, Any] = Field(default_factory=dict)
        """Of the task itself, as JSON, such as robot_uids."""

        def problems(self) -> list[str]:
            """The package is missing."""
            return [] if importlib.util.find_spec("mani_skill") else [_INSTALL]

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        self._scenes = _scenes(config, num_rows)
        first = self._scenes[0]
        limit = first._max_episode_steps
        self._max_ticks: int = config.max_episode_ticks or limit
        self._ticks = np.zeros(num_rows, np.int64)
        with torch.inference_mode():
            seen = _arrays(first.reset(seed=0)[0])
        space = first.unwrapped.single_action_space
        self._interface = Interface(
            observations=tuple(spec_of(name, array) for name, array in seen.items()),
            action=Spec(name="action", shape=space.shape, low=_bound(space.low), high=_bound(space.high)),
            max_episode_ticks=self._max_ticks,
            tick_s=1 / first.unwrapped.control_freq,
        )

    @property
    def interface(self) -> Interface:
        """``state``, and a picture by the name of each camera."""
        return self._interface

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        """See ``Env.reset``."""
        self._ticks[list(rows)] = 0
        with torch.inference_mode():
            return stacked(
                [_arrays(self._scenes[row].reset(seed=seed)[0]) for row, seed in zip(rows, seeds, strict=True)]
            )

    def step(self, actions: np.ndarray) -> Outcome:
        """See ``Env.step``."""
        self._ticks += 1
        # Grad mode off, and no version counters: a tenth of a tick.
        with torch.inference_mode():
            made = [scene.unwrapped.step(action) for scene, action in zip(self._scenes, actions, strict=True)]
        seen, rewards, ends, _, infos = zip(*made, strict=True)
        success = np.array([bool(info["success"]) if "success" in info else False for info in infos])
        terminated = np.array([bool(end) for end in ends]) & self.config.ends_on_success
        return Outcome(
            observations=stacked([_arrays(one) for one in seen]),
            rewards=np.array([float(reward) for reward in rewards], np.float32),
            terminated=terminated,
            truncated=(self._ticks >= self._max_ticks) & ~terminated,
            success=success if "success" in infos[0] else None,
        )

    def render(self, row: int) -> np.ndarray:
        """See ``Env.render``; the first picture of a process takes seconds."""
        with torch.inference_mode():
            picture = self._scenes[row].unwrapped.render()
        return np.ascontiguousarray(torch.as_tensor(picture)[0, ..., :3].cpu().numpy(), np.uint8)

    def close(self) -> None:
        """See ``Env.close``."""
        for scene in self._scenes:
            scene.close()
        self._scenes = []

    @classmethod
    def doctor(cls) -> list[str]:
        """The package, and a device to draw with, which is tried in a process of its own."""
        if not importlib.util.find_spec("mani_skill"):
            return [_INSTALL]
        return [_NO_DEVICE.format(why)] if (why := _drawing_error()) else []


@functools.cache
def _drawing_error() -> str:
    program = "import sapien; sapien.render.RenderMaterial(base_color=[1, 1, 1, 1])"
    tried = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    return (tried.stderr.strip().splitlines() or [f"it ends with code {tried.returncode}"])[-1]


def _scenes(config: Any, num_rows: int) -> list[Any]:
    if not importlib.util.find_spec("mani_skill"):
        raise SimulatorError(_INSTALL)
    # It says at every start which of its devices are not there.
    logging.getLogger("mani_skill").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gymnasium: Any = importlib.import_module("gymnasium")
        importlib.import_module("mani_skill.envs")
        camera = {"obs_mode": "rgb", "sensor_configs": {"width": config.image_size, "height": config.image_size}}
        try:
            with torch.inference_mode():
                return [
                    gymnasium.make(
                        config.id,
                        num_envs=1,
                        control_mode=config.control_mode,
                        reward_mode=config.reward_mode,
                        sim_backend="physx_cpu",
                        render_mode="rgb_array",
                        **(camera if config.observations == "camera" else {"obs_mode": "state"}),
                        **config.options,
                    )
                    for _ in range(num_rows)
                ]
        except Exception as error:
            # Whatever a task raises: most often a wrong option, a missing asset, or no device.
            missing = Maniskill.doctor() if isinstance(error, RuntimeError) else []
            raise SimulatorError("; ".join(missing) or f"maniskill cannot make '{config.id}': {error}") from error


def _arrays(seen: Any) -> dict[str, np.ndarray]:
    """By name: what one scene observes, without its axis of one."""
    if not isinstance(seen, Mapping):
        return {"state": seen[0].cpu().numpy()}
    state = [part.flatten().float() for group in ("agent", "extra") for part in _leaves(seen[group])]
    pictures = {name: data["rgb"][0].cpu().numpy() for name, data in seen["sensor_data"].items()}
    return {"state": torch.cat(state).cpu().numpy(), **pictures}


def _leaves(tree: Any) -> list[torch.Tensor]:
    if not isinstance(tree, Mapping):
        return [torch.as_tensor(tree)]
    return [leaf for part in tree.values() for leaf in _leaves(part)]


def _bound(limits: np.ndarray) -> float | tuple[float, ...]:
    return float(limits[0]) if (limits == limits[0]).all() else tuple(limits.tolist())
