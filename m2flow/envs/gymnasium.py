# SPDX-License-Identifier: Apache-2.0
"""Any environment that is registered with Gymnasium, MuJoCo's among them."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from m2flow.config import Config
from m2flow.envs.base import Env, Observations, Outcome, draw_without_screen
from m2flow.errors import SimulatorError
from m2flow.spec import Bound, Interface, Spec

_SUCCESS = ("success", "is_success")
"""What environments call it in their ``info``."""
_INSTALL = "the package 'gymnasium' is not installed: pip install 'm2flow[gymnasium]'"


class Gymnasium(Env):
    """Copies of one environment, stepped one after another. Success is ``info["success"]`` or ``["is_success"]``."""

    class Config(Config):
        """Options of ``gymnasium``."""

        headline = "id"

        id: str = "CartPole-v1"
        """As it is registered, or ``module:id`` where a module must be imported first."""
        options: dict[str, Any] = Field(default_factory=dict)
        """Of the environment itself, as JSON."""
        max_episode_ticks: int | None = Field(default=None, ge=1)
        """After so many ticks an episode is truncated. None: as it is registered."""

        def problems(self) -> list[str]:
            """The package is missing."""
            return Gymnasium.doctor()

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        if missing := self.doctor():
            raise SimulatorError(missing[0])
        self._envs = [_make(config) for _ in range(num_rows)]
        first = self._envs[0]
        self._action_start = int(getattr(first.action_space, "start", 0))
        self._interface = Interface(
            observations=tuple(_specs(first.observation_space, config.id)),
            action=_action(first.action_space, config.id),
            max_episode_ticks=first.spec.max_episode_steps,
        )

    @property
    def interface(self) -> Interface:
        """One array ``state``, or those of a dictionary by their names; whole numbers from 0 where it is discrete."""
        return self._interface

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Observations:
        """See ``Env.reset``."""
        return self._stacked([self._envs[row].reset(seed=seed)[0] for row, seed in zip(rows, seeds, strict=True)])

    def step(self, actions: np.ndarray) -> Outcome:
        """See ``Env.step``."""
        made = actions + self._action_start if self._interface.action.is_discrete else actions
        seen, rewards, terminated, truncated, infos = zip(
            *(env.step(action) for env, action in zip(self._envs, made, strict=True)), strict=True
        )
        terminated = np.array(terminated, bool)
        return Outcome(
            observations=self._stacked(seen),
            rewards=np.array(rewards, np.float32),
            terminated=terminated,
            truncated=np.array(truncated, bool) & ~terminated,
            success=_success(infos),
        )

    def render(self, row: int) -> np.ndarray:
        """See ``Env.render``."""
        gymnasium: Any = importlib.import_module("gymnasium")
        try:
            picture = self._envs[row].render()
        except gymnasium.error.Error as error:
            raise SimulatorError(f"{self.config.id} cannot be drawn: {error}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise SimulatorError(f"{self.config.id} draws no picture: its render modes have no rgb_array")
        return np.ascontiguousarray(picture[..., :3], np.uint8)

    def close(self) -> None:
        """See ``Env.close``."""
        for env in self._envs:
            env.close()
        self._envs = []

    @classmethod
    def doctor(cls) -> list[str]:
        """The package itself; what a registered environment needs is said when it is made."""
        return [] if importlib.util.find_spec("gymnasium") else [_INSTALL]

    def _stacked(self, seen: Sequence[Any]) -> dict[str, np.ndarray]:
        specs = self._interface.observations
        if not isinstance(seen[0], Mapping):
            return {specs[0].name: np.stack(seen).astype(specs[0].dtype, copy=False)}
        return {s.name: np.stack([one[s.name] for one in seen]).astype(s.dtype, copy=False) for s in specs}


def _make(config: Any) -> Any:
    gymnasium: Any = importlib.import_module("gymnasium")
    draw_without_screen()
    limit = {} if config.max_episode_ticks is None else {"max_episode_steps": config.max_episode_ticks}
    try:
        return gymnasium.make(config.id, render_mode="rgb_array", **limit, **config.options)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise SimulatorError(f"gymnasium cannot make '{config.id}': {error}") from error


def _success(infos: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    found = [next((info[key] for key in _SUCCESS if key in info), None) for info in infos]
    return None if all(one is None for one in found) else np.array([bool(one) for one in found])


def _specs(space: Any, name: str) -> list[Spec]:
    spaces: Any = importlib.import_module("gymnasium.spaces")
    if not isinstance(space, spaces.Dict):
        return [_spec(space, name, key="state")]
    return [_spec(part, name, key=key) for key, part in space.spaces.items()]


def _spec(space: Any, name: str, *, key: str) -> Spec:
    spaces: Any = importlib.import_module("gymnasium.spaces")
    if isinstance(space, spaces.Discrete):
        return Spec(name=key, shape=(), dtype="int64", low=float(space.start), high=float(space.start + space.n - 1))
    if not isinstance(space, spaces.Box):
        raise SimulatorError(f"'{key}' of {name} is a {type(space).__name__}: arrays (Box) and Discrete can be read")
    dtype = "float32" if space.dtype.kind == "f" else str(space.dtype)
    return Spec(name=key, shape=space.shape, dtype=dtype, low=_bound(space.low), high=_bound(space.high))


def _action(space: Any, name: str) -> Spec:
    spaces: Any = importlib.import_module("gymnasium.spaces")
    if isinstance(space, spaces.Discrete):
        return Spec(name="action", shape=(), dtype="int64", low=0.0, high=float(space.n - 1))
    return _spec(space, name, key="action")


def _bound(array: np.ndarray) -> Bound:
    """One limit where all are equal, each of a flat array, or the widest that holds for all."""
    if array.size and (array == array.flat[0]).all():
        return float(array.flat[0])
    return tuple(array.tolist()) if array.ndim == 1 else float(array.flat[0])
