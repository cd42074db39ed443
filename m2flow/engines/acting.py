# SPDX-License-Identifier: Apache-2.0
"""Acts in environments with a control policy's own network, a part of the environments at a time."""

from contextlib import AbstractContextManager, closing
from typing import Any

import numpy as np
import torch
from torch import Tensor

from m2flow.config import Config
from m2flow.data.films import Film, filmed, require_encoder
from m2flow.data.trajectories import Episode, Trajectories
from m2flow.engines.base import ModuleEngine
from m2flow.engines.control.collection import Collection
from m2flow.engines.control.driving import drive
from m2flow.engines.control.threads import threads_for
from m2flow.envs.base import Observations
from m2flow.envs.stepping.base import Stepper, Tick
from m2flow.errors import EngineError
from m2flow.policies.base import Actor

_TICK_S = 0.05
"""How long a picture is shown where the simulator does not say how long a tick is."""


class Acting(ModuleEngine):
    """Draws actions with noise that is a function of (seed, tick, row), whatever parts the rows are stepped in."""

    class Config(Config):
        """No options."""

    def __init__(self, config: Any, policy: Any) -> None:
        super().__init__(config, policy)
        if not isinstance(policy, Actor):
            raise EngineError(f"the engine 'acting' is for control policies, not for '{policy.name}': leave engine out")

    def interact(self, stepper: Stepper, *, steps: int | None = None, episodes: int | None = None) -> Trajectories:
        """See ``Engine.interact``."""
        version = self.require_current()
        num_ticks = _num_ticks(stepper, steps, episodes=episodes)
        collection = Collection(stepper, num_ticks, version=version, episodes=episodes)

        def act(number: int, part: int) -> np.ndarray:
            actions, logprobs = self._act(stepper.observations[part], self._noise(stepper, part))
            collection.acted(number, part, actions=actions, logprobs=logprobs)
            return self.policy.env_actions(actions)

        with self._threads(stepper), closing(drive(stepper, act, num_ticks=num_ticks)) as ticks:
            for number, part, tick in ticks:
                collection.stepped(number, part, tick=tick)
                if collection.is_full:
                    break
        return collection.trajectories()

    def evaluate(self, stepper: Stepper, *, episodes: int) -> list[Episode]:
        """See ``Engine.evaluate``."""
        self.require_current()
        count = _Count(stepper, episodes)

        def act(number: int, part: int) -> np.ndarray:
            return self.policy.env_actions(self._act(stepper.observations[part], None)[0])

        num_ticks = _num_ticks(stepper, None, episodes=count.most)
        with self._threads(stepper), closing(drive(stepper, act, num_ticks=num_ticks)) as ticks:
            for _, part, tick in ticks:
                count.add(part, tick)
                if count.is_full:
                    break
        return count.episodes

    def film(self, stepper: Stepper, *, episodes: int) -> Film:
        """See ``Engine.film``."""
        require_encoder()
        self.require_current()
        pictures: list[np.ndarray] = []

        def act(number: int, part: int) -> np.ndarray:
            # Row 0 is in part 0, which is not in flight now.
            if part == 0:
                pictures.append(stepper.render(0))
            return self.policy.env_actions(self._act(stepper.observations[part], None)[0])

        num_ticks = _num_ticks(stepper, None, episodes=episodes)
        with self._threads(stepper), closing(drive(stepper, act, num_ticks=num_ticks)) as ticks:
            for _, _, tick in ticks:
                episodes -= sum(episode.row == 0 for episode in tick.episodes)
                if episodes == 0:
                    break
        return filmed(pictures, tick_s=stepper.interface.tick_s or _TICK_S)

    def _threads(self, stepper: Stepper) -> AbstractContextManager[None]:
        return threads_for(self.policy.module, stepper.num_rows // stepper.num_parts)

    def _noise(self, stepper: Stepper, part: int) -> Tensor:
        rng = np.random.default_rng([stepper.seed, stepper.num_ticks[part]])
        return torch.from_numpy(self.policy.noise(rng, stepper.num_rows)[stepper.rows(part)])

    def _act(self, observations: Observations, noise: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        # Made outside of inference mode, in which parameters could not be trained later.
        device = next(iter(self.policy.module.parameters())).device
        with torch.inference_mode():
            seen = {name: torch.from_numpy(array).to(device) for name, array in observations.items()}
            actions, logprobs = self.policy.act(seen, None if noise is None else noise.to(device))
        return actions.cpu().numpy(), logprobs.cpu().numpy()


class _Count:
    """The first episodes of each row, about equal numbers of them, ``num`` in all."""

    def __init__(self, stepper: Stepper, num: int) -> None:
        share, more = divmod(num, stepper.num_rows)
        self.stepper, self.episodes = stepper, list[Episode]()
        self._left = np.full(stepper.num_rows, share)
        self._left[:more] += 1
        self.most = int(self._left.max())
        """Of one row."""

    @property
    def is_full(self) -> bool:
        return not self._left.any()

    def add(self, part: int, tick: Tick) -> None:
        self.episodes += [episode for episode in tick.episodes if self._left[episode.row] > 0]
        over = np.concatenate([tick.ended, np.flatnonzero(tick.lost)]) + self.stepper.rows(part).start
        self._left[over] = np.maximum(self._left[over] - 1, 0)


def _num_ticks(stepper: Stepper, steps: int | None, *, episodes: int | None) -> int:
    """``steps``, or as many as ``episodes`` can have at most."""
    if steps is not None:
        return steps
    longest = stepper.interface.max_episode_ticks
    if longest is None:
        raise EngineError("whole episodes were asked for, and nothing limits them: set the env's max_episode_ticks")
    return longest * (episodes or 1)
