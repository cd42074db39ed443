# SPDX-License-Identifier: Apache-2.0
"""Ticks gathered as trajectories, in arrays that are made once."""

from collections.abc import Mapping

import numpy as np

from m2flow.data.trajectories import Episode, Trajectories
from m2flow.envs.base import Observations
from m2flow.envs.stepping.base import Stepper, Tick


class Collection:
    """Room for ``num_ticks`` ticks of all rows of ``stepper``.

    Args:
        version: of the weights that act.
        episodes: how many each row contributes, ticks after those being masked; left out, all that there are.
    """

    def __init__(self, stepper: Stepper, num_ticks: int, *, version: int, episodes: int | None = None) -> None:
        self._stepper, self._version = stepper, version
        shape = (num_ticks, stepper.num_rows)
        specs = stepper.interface.observations
        self._observations = {s.name: np.empty((*shape, *s.shape), s.dtype) for s in specs}
        self._actions: np.ndarray | None = None
        self._logprobs, self._rewards = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self._terminated, self._truncated = np.empty(shape, bool), np.empty(shape, bool)
        self._mask = np.ones(shape, bool)
        self._begins = np.zeros(stepper.num_rows, np.int64)
        """The first tick here of each row's present episode."""
        self._left = None if episodes is None else np.full(stepper.num_rows, episodes)
        self._ended: list[tuple[int, int]] = []
        self._final: list[Observations] = []
        self._episodes: list[Episode] = []
        self._num_ticks = self._num_lost = 0

    @property
    def is_full(self) -> bool:
        """Whether every row has contributed its episodes."""
        return self._left is not None and not self._left.any()

    def acted(self, number: int, part: int, *, actions: np.ndarray, logprobs: np.ndarray) -> None:
        """What the policy drew for what ``part`` sees now."""
        rows = self._stepper.rows(part)
        for name, array in self._stepper.observations[part].items():
            self._observations[name][number, rows] = array
        if self._actions is None:
            self._actions = np.empty((*self._rewards.shape, *actions.shape[1:]), actions.dtype)
        self._actions[number, rows] = actions
        self._logprobs[number, rows] = logprobs

    def stepped(self, number: int, part: int, *, tick: Tick) -> None:
        """What that led to."""
        self._num_ticks, rows = number + 1, self._stepper.rows(part)
        self._rewards[number, rows] = tick.rewards
        self._terminated[number, rows] = tick.terminated
        self._truncated[number, rows] = tick.truncated | tick.lost
        counts = np.ones(len(tick.lost), bool) if self._left is None else self._left[rows] > 0
        self._mask[number, rows] = counts
        ended = tick.ended + rows.start
        self._ended += [(number, row) for row in ended.tolist()]
        self._final.append(tick.final_observations)
        self._episodes += [episode for episode in tick.episodes if counts[episode.row - rows.start]]
        lost = np.flatnonzero(tick.lost & counts) + rows.start
        for row in lost.tolist():
            self._mask[self._begins[row] : number + 1, row] = False
        self._num_lost += len(lost)
        over = np.concatenate([ended, np.flatnonzero(tick.lost) + rows.start])
        self._begins[over] = number + 1
        if self._left is not None:
            self._left[over] = np.maximum(self._left[over] - 1, 0)

    def trajectories(self) -> Trajectories:
        """All ticks so far; the buffers are the result's own from now on."""
        num, actions, stepper = self._num_ticks, self._actions, self._stepper
        if actions is None:
            raise ValueError("nothing was collected")
        return Trajectories(
            observations=_first(self._observations, num),
            actions=actions[:num],
            logprobs=self._logprobs[:num],
            rewards=self._rewards[:num],
            terminated=self._terminated[:num],
            truncated=self._truncated[:num],
            mask=self._mask[:num],
            last_observations={
                name: np.concatenate([seen[name] for seen in stepper.observations]) for name in self._observations
            },
            final_observations={
                name: np.concatenate([final[name] for final in self._final]) for name in self._observations
            },
            ended=np.array(self._ended, np.int64).reshape(-1, 2),
            versions=np.full((num, stepper.num_rows), self._version, np.int32),
            group_ids=np.arange(stepper.num_rows) // stepper.group_size,
            whole_episodes=self._left is not None,
            episodes=self._episodes,
            num_lost=self._num_lost,
        )


def _first(arrays: Mapping[str, np.ndarray], num: int) -> dict[str, np.ndarray]:
    return {name: array[:num] for name, array in arrays.items()}
