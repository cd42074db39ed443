# SPDX-License-Identifier: Apache-2.0
"""Meta-World: fifty manipulation tasks of one arm in MuJoCo, each alone (MT1) or several together (MT10, MT50)."""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from m2flow.config import Config
from m2flow.envs.base import Env, Observations, Outcome, draw_without_screen, spec_of, stacked
from m2flow.errors import SimulatorError
from m2flow.spec import Interface, Spec

_INSTALL = "the package 'metaworld' is not installed: pip install 'm2flow[metaworld]'"
_ROLLED = ("corner", "corner2", "corner3")
"""Cameras that hang upside down."""
_NUM_OWN = 4
"""The first entries of a state: position of the hand, and how far it is open."""
_PICTURE = 480
"""Height and width of pictures for people, in pixels."""


class Metaworld(Env):
    """Copies of one task, or of several from which each episode draws one. The goal is among what is observed.

    An episode goes on to its limit when the task is solved, unless ``ends_on_success``.
    """

    is_slow = True

    class Config(Config):
        """Options of ``metaworld``."""

        headline = "task"

        task: str = "reach-v3"
        """A task (MT1), or MT10 or MT50: each episode draws one of those, which is observed as ``task``, one-hot."""
        observations: Literal["state", "camera"] = "state"
        """state: the hand, two objects, the same a tick ago, the goal. camera: a picture, and the hand."""
        camera: str = "corner2"
        """Which camera, also of films."""
        image_size: int = Field(default=128, ge=16)
        """Height and width of observed pictures, in pixels."""
        reward_scale: float = Field(default=0.1, gt=0)
        """Factor of the task's reward, which is at most 10 a tick."""
        ends_on_success: bool = False
        """Whether solving the task terminates the episode."""
        max_episode_ticks: int = Field(default=500, ge=1)
        """After so many ticks an episode is truncated."""

        def problems(self) -> list[str]:
            """The package is missing, or it has no such task."""
            if missing := Metaworld.doctor():
                return missing
            return (
                [] if _tasks_of(self.task) else [f"metaworld has no task '{self.task}': reach-v3, push-v3, MT10, ..."]
            )

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        if wrong := config.problems():
            raise SimulatorError(wrong[0])
        self._tasks = _tasks_of(config.task)
        self._made: list[dict[int, Any]] = [{} for _ in range(num_rows)]
        """Of each row, the simulators of the tasks that it has had."""
        self._task_of = np.zeros(num_rows, np.int64)
        self._ticks = np.zeros(num_rows, np.int64)
        seen = self._observed(0, self._begin(0, 0))
        self._interface = Interface(
            observations=tuple(spec_of(name, array) for name, array in seen.items()),
            action=Spec(name="action", shape=(4,), low=-1.0, high=1.0),
            max_episode_ticks=config.max_episode_ticks,
            tick_s=self._made[0][self._task_of[0]].dt,
        )

    @property
    def interface(self) -> Interface:
        """``state``, the picture by its camera's name, and ``task`` where there are several."""
        return self._interface

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        """See ``Env.reset``."""
        states = [self._begin(row, seed) for row, seed in zip(rows, seeds, strict=True)]
        return stacked([self._observed(row, state) for row, state in zip(rows, states, strict=True)])

    def step(self, actions: np.ndarray) -> Outcome:
        """See ``Env.step``."""
        self._ticks += 1
        made = [self._simulator(row).step(action) for row, action in enumerate(actions)]
        seen, rewards, _, _, infos = zip(*made, strict=True)
        success = np.array([bool(info["success"]) for info in infos])
        terminated = success & self.config.ends_on_success
        return Outcome(
            observations=stacked([self._observed(row, state) for row, state in enumerate(seen)]),
            rewards=np.array(rewards, np.float32) * np.float32(self.config.reward_scale),
            terminated=terminated,
            truncated=(self._ticks >= self.config.max_episode_ticks) & ~terminated,
            success=success,
        )

    def render(self, row: int) -> np.ndarray:
        """See ``Env.render``."""
        picture = self._drawn(row)
        if self.config.observations == "state":
            return picture
        # What is observed is small: each pixel several times.
        return picture.repeat(-(-_PICTURE // len(picture)), 0).repeat(-(-_PICTURE // len(picture)), 1)

    def close(self) -> None:
        """See ``Env.close``."""
        for simulators in self._made:
            for simulator in simulators.values():
                simulator.close()
            simulators.clear()

    @classmethod
    def doctor(cls) -> list[str]:
        """The package; what drawing needs is said when something is drawn."""
        return [] if importlib.util.find_spec("metaworld") else [_INSTALL]

    def _begin(self, row: int, seed: int) -> np.ndarray:
        self._ticks[row] = 0
        self._task_of[row] = np.random.default_rng(seed).integers(len(self._tasks))
        simulator = self._simulator(row)
        simulator.seed(seed)
        return simulator.reset()[0]

    def _simulator(self, row: int) -> Any:
        number = int(self._task_of[row])
        if number not in self._made[row]:
            self._made[row][number] = self._make(self._tasks[number])
        return self._made[row][number]

    def _make(self, task: str) -> Any:
        config = self.config
        size = config.image_size if config.observations == "camera" else _PICTURE
        kinds: Any = importlib.import_module("metaworld.env_dict")
        made = kinds.ALL_V3_ENVIRONMENTS[task](
            render_mode="rgb_array", camera_name=config.camera, width=size, height=size
        )
        # What the package's own benchmarks set, but for their fixed list of 50 goals: each reset draws one from the
        # seed. The limit is counted here.
        made._partially_observable, made._set_task_called = False, True
        made._freeze_rand_vec, made.seeded_rand_vec = False, True
        # Its limits, which states are clipped to, are kept from a time when the goal was hidden.
        vars(made).pop("sawyer_observation_space", None)
        made.max_path_length = np.iinfo(np.int64).max
        return made

    def _observed(self, row: int, state: np.ndarray) -> dict[str, np.ndarray]:
        seen = {"state": state.astype(np.float32)}
        if self.config.observations == "camera":
            seen = {"state": seen["state"][:_NUM_OWN], self.config.camera: self._drawn(row)}
        if len(self._tasks) > 1:
            seen["task"] = np.eye(len(self._tasks), dtype=np.float32)[self._task_of[row]]
        return seen

    def _drawn(self, row: int) -> np.ndarray:
        try:
            picture = self._simulator(row).render()
        except Exception as error:
            # Whatever a graphics library raises where it finds no device.
            raise SimulatorError(
                f"metaworld cannot draw by camera '{self.config.camera}': {error}. Debian: apt install libegl1 "
                "libgl1-mesa-dri, or libosmesa6 and MUJOCO_GL=osmesa"
            ) from error
        return np.ascontiguousarray(picture[::-1, ::-1] if self.config.camera in _ROLLED else picture)


def _tasks_of(name: str) -> list[str]:
    """Names of the tasks; empty where there is no such name."""
    draw_without_screen()
    kinds: Any = importlib.import_module("metaworld.env_dict")
    several = {"MT10": kinds.MT10_V3, "MT50": kinds.MT50_V3}
    if name in several:
        return list(several[name])
    return [name] if name in kinds.ALL_V3_ENVIRONMENTS else []
