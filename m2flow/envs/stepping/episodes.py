# SPDX-License-Identifier: Apache-2.0
"""Rows of one simulator: autoreset, seeds, what is counted of their episodes, and their replay."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from m2flow.data.trajectories import Episode
from m2flow.envs.base import Env, Observations, Outcome
from m2flow.envs.stepping.base import Tick
from m2flow.errors import CheckpointError


def episode_seed(seed: int, *, group: int, number: int) -> int:
    """Of the ``number``-th episode in the rows of ``group``: 31 bits, as many as every simulator takes."""
    return int(np.random.SeedSequence([seed, group, number]).generate_state(1)[0]) >> 1


class Rows:
    """Steps an ``Env`` whose rows are ``numbers`` of the run; ``B`` is their number.

    The seed of an episode is that of its group of ``group_size`` rows of the run, so that a group's begin alike.

    Actions since the begin of the oldest unfinished episode are kept, so that it can be replayed.

    Args:
        num_begun: [B] int64 where episodes are counted that each row has begun, from outside if others read it too.
    """

    def __init__(
        self, env: Env, numbers: Sequence[int], *, group_size: int = 1, num_begun: np.ndarray | None = None
    ) -> None:
        self.env, self.numbers, self.group_size = env, list(numbers), group_size
        self.seed = 0
        size = len(self.numbers)
        self._num_begun = np.zeros(size, np.int64) if num_begun is None else num_begun
        self._actions: list[np.ndarray] = []
        self._begins = np.zeros(size, np.int64)
        """Where in ``_actions`` each row's episode began."""
        self._total_rewards = np.zeros(size)
        self._success_once = np.zeros(size, bool)

    def reset(self, seed: int, *, skip: Sequence[int] | int = 0) -> Observations:
        """The first episode of ``seed`` in every row, after ``skip`` others."""
        self.seed = seed
        self._num_begun[:] = skip
        self._actions.clear()
        return self._begin(list(range(len(self.numbers))))

    def tick(self, actions: np.ndarray) -> Tick:
        """One tick of all rows with actions that the interface allows; rows whose episode ended begin another."""
        self._actions.append(np.array(actions))
        outcome = self.env.step(actions)
        self._count(outcome)
        (ended,) = np.nonzero(outcome.terminated | outcome.truncated)
        episodes = [self._episode(row, outcome) for row in ended.tolist()]
        observations = outcome.observations
        final = {name: array[ended] for name, array in observations.items()}
        if len(ended):
            self._next(ended.tolist())
            observations = self._with_resets(observations, ended.tolist())
            self._forget()
        return Tick(
            observations=observations,
            rewards=outcome.rewards,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            ended=ended,
            final_observations=final,
            lost=np.zeros(len(self.numbers), bool),
            episodes=episodes,
        )

    def state(self) -> dict[str, list[Any]]:
        """How many episodes each row has begun, and the actions of the unfinished ones."""
        parts = [[a[row] for a in self._actions[begin:]] for row, begin in enumerate(self._begins.tolist())]
        return {
            "num_begun": self._num_begun.tolist(),
            "actions": [np.stack(part) if part else np.zeros(0) for part in parts],
        }

    def load_state(self, seed: int, state: Mapping[str, Sequence[Any]]) -> Observations:
        """Replay the unfinished episodes, so that all of them arrive at their present together.

        Raises:
            CheckpointError: the simulator does not repeat itself.
        """
        self.seed = seed
        left = np.array([len(actions) for actions in state["actions"]])
        self._num_begun[:] = np.array(state["num_begun"]) - 1
        self._actions.clear()
        observations = self._begin(list(range(len(left))))
        self._begins[:] = left.max() - left
        for now in range(left.max()):
            observations = self._replay(now, state["actions"])
        return observations

    def _replay(self, now: int, actions: Sequence[np.ndarray]) -> Observations:
        """One tick: of rows whose episode has begun, its next action; the others are put at their begin in time."""
        spare = next(part[0] for part in actions if len(part))
        begins = self._begins.tolist()
        made = np.stack(
            [part[now - begin] if begin <= now else spare for part, begin in zip(actions, begins, strict=True)]
        )
        self._actions.append(made)
        outcome = self.env.step(made)
        self._count(outcome)
        ended, begun = outcome.terminated | outcome.truncated, self._begins <= now
        if (ended & begun).any():
            raise CheckpointError(
                f"the simulator {self.env.name} ends an episode in its replay that had not ended before: it does not "
                "repeat itself, so that unfinished episodes cannot be resumed; begin the run anew"
            )
        (due,) = np.nonzero(~begun & (ended | (self._begins == now + 1)))
        return self._with_resets(outcome.observations, due.tolist()) if len(due) else outcome.observations

    def _seed_of(self, row: int) -> int:
        group = self.numbers[row] // self.group_size
        return episode_seed(self.seed, group=group, number=int(self._num_begun[row]) - 1)

    def _begin(self, rows: list[int]) -> Observations:
        self._next(rows)
        return self._reset(rows)

    def _next(self, rows: list[int]) -> None:
        self._num_begun[rows] += 1
        self._begins[rows] = len(self._actions)

    def _reset(self, rows: list[int]) -> Observations:
        """Put ``rows`` in front of the first state of the episode that they are in."""
        self._total_rewards[rows], self._success_once[rows] = 0, False
        return self.env.reset(rows, [self._seed_of(row) for row in rows])

    def _with_resets(self, observations: Observations, rows: list[int]) -> Observations:
        """``observations`` of all rows, those of ``rows`` replaced by the first of their episode."""
        whole = {name: np.array(array) for name, array in observations.items()}
        for name, array in self._reset(rows).items():
            whole[name][rows] = array
        return whole

    def _count(self, outcome: Outcome) -> None:
        self._total_rewards += outcome.rewards
        if outcome.success is not None:
            self._success_once |= outcome.success

    def _episode(self, row: int, outcome: Outcome) -> Episode:
        success = outcome.success
        return Episode(
            row=self.numbers[row],
            seed=self._seed_of(row),
            total_reward=float(self._total_rewards[row]),
            num_ticks=len(self._actions) - int(self._begins[row]),
            success_once=None if success is None else bool(self._success_once[row]),
            success_at_end=None if success is None else bool(success[row]),
            truncated=not outcome.terminated[row],
        )

    def _forget(self) -> None:
        """Drop the actions that belong to no unfinished episode, once they are the larger part."""
        oldest = int(self._begins.min())
        if oldest > len(self._actions) // 2:
            del self._actions[:oldest]
            self._begins -= oldest


_BY_ROW = ("num_begun", "actions")
"""What ``Rows.state`` holds, each a list with an entry for every row."""


def joined(states: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """States of rows one after another as one."""
    return {key: [entry for state in states for entry in state[key]] for key in _BY_ROW}


def taken(state: Mapping[str, Sequence[Any]], rows: slice) -> dict[str, Sequence[Any]]:
    """The part of a state that is about ``rows``."""
    return {key: state[key][rows] for key in _BY_ROW}
