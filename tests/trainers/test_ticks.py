# SPDX-License-Identifier: Apache-2.0
"""Ticks as a workload: advantages of pieces of episodes, by hand and as the environments' own formula has them."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from m2flow.algorithms.formulas.env_gae import Steps, env_gae
from m2flow.algorithms.grpo import Grpo
from m2flow.algorithms.ppo import Ppo
from m2flow.data.trajectories import Trajectories
from m2flow.trainers.control.ticks import Ticks
from m2flow.trainers.packing.texts import Models


class SeenValues:
    """A critic whose value of a state is the number that is observed."""

    module = nn.Identity()

    def values(self, observations: dict[str, Tensor]) -> Tensor:
        return observations["value"]


def made(
    rewards: Any, values: Any, *, terminated: Any, truncated: Any, final: Any, last: Any, **more: Any
) -> Trajectories:
    """Arrays [T, N]; ``final`` [T, N] counts where an episode ended."""
    rewards = np.asarray(rewards, np.float32)
    ended = np.argwhere(np.asarray(terminated) | np.asarray(truncated))
    return Trajectories(
        observations={"value": np.asarray(values, np.float32)},
        actions=np.zeros((*rewards.shape, 1), np.float32),
        logprobs=np.zeros(rewards.shape, np.float32),
        rewards=rewards,
        terminated=np.asarray(terminated),
        truncated=np.asarray(truncated),
        last_observations={"value": np.asarray(last, np.float32)},
        final_observations={"value": np.asarray(final, np.float32)[ended[:, 0], ended[:, 1]]},
        ended=ended,
        versions=np.zeros(rewards.shape, np.int32),
        **{"mask": np.ones(rewards.shape, bool), "group_ids": np.arange(rewards.shape[1]), **more},
    )


def valued(trajectories: Trajectories, algorithm: Any) -> tuple[Tensor, Tensor | None]:
    """Advantages and returns [T, N] of ``algorithm``."""
    work = Ticks(Models(policy=None, critic=SeenValues()), trajectories)
    batch = work.batch()
    values = work.values(range(len(batch.mask)))
    found = work.advantages(algorithm, type(batch)(**{**vars(batch), "values": values}))
    assert found.advantages is not None and found.mask.shape == batch.mask.shape
    shape = trajectories.rewards.T.shape
    returns = None if found.returns is None else found.returns.view(shape).T
    return found.advantages.view(shape).T, returns


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_ticks=st.integers(1, 9), num_rows=st.integers(1, 4))
def test_ppo_over_pieces_is_gae_over_environments(seed: int, num_ticks: int, num_rows: int) -> None:
    rng, shape = np.random.default_rng(seed), (num_ticks, num_rows)
    ends, by_limit = rng.random(shape) < 0.3, rng.random(shape) < 0.5
    rewards, values, final = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    last = rng.standard_normal(num_rows).astype(np.float32)
    cut = {"terminated": ends & ~by_limit, "truncated": ends & by_limit}
    steps = Steps(
        rewards=torch.from_numpy(rewards),
        values=torch.from_numpy(values),
        last_values=torch.from_numpy(last),
        final_values=torch.from_numpy(final),
        **{name: torch.from_numpy(array) for name, array in cut.items()},
    )
    wanted, wanted_returns = env_gae(steps, gamma=0.9, lam=0.8)
    ppo = Ppo(Ppo.Config(gamma=0.9, lam=0.8, whiten=False))
    advantages, returns = valued(made(rewards, values, final=final, last=last, **cut), ppo)
    torch.testing.assert_close(advantages, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(returns, wanted_returns, atol=1e-5, rtol=1e-5)


def test_only_an_end_by_the_task_is_worth_nothing_more() -> None:
    """Three environments, one tick, reward 1, value 0, discount a half: the task ends, a limit ends, it goes on."""
    trajectories = made(
        [[1.0, 1.0, 1.0]],
        [[0.0, 0.0, 0.0]],
        terminated=[[True, False, False]],
        truncated=[[False, True, False]],
        final=[[8.0, 10.0, 0.0]],
        last=[100.0, 100.0, 20.0],
    )
    _, returns = valued(trajectories, Ppo(Ppo.Config(gamma=0.5, lam=1.0, whiten=False)))
    assert returns is not None and returns.tolist() == [[1.0, 1.0 + 5.0, 1.0 + 10.0]]


def test_what_a_lost_episode_left_behind_reaches_no_advantage() -> None:
    """Environment 0 is lost at its second tick; what it holds there, and before, may be anything."""
    given_ = {"terminated": np.zeros((3, 2), bool), "final": np.zeros((3, 2)), "last": [1.0, 1.0]}
    truncated, mask = np.zeros((3, 2), bool), np.ones((3, 2), bool)
    truncated[1, 0], mask[:2, 0] = True, False
    rewards, values = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    ppo = Ppo(Ppo.Config(gamma=1.0, lam=1.0))
    good, _ = valued(made(rewards, values, truncated=truncated, mask=mask, **given_), ppo)
    rewards[:2, 0] = np.nan
    bad, _ = valued(made(rewards, values, truncated=truncated, mask=mask, **given_), ppo)
    assert torch.equal(good, bad) and good[:2, 0].tolist() == [0, 0] and good.isfinite().all()


def test_the_kth_episodes_of_a_group_are_compared() -> None:
    """Two rows of one group, two episodes of two ticks each: totals 2 and 4, then 10 and 0; centred, not divided."""
    rewards = [[1, 3], [1, 1], [5, 0], [5, 0]]
    ends = np.zeros((4, 2), bool)
    ends[[1, 3]] = True
    trajectories = made(
        rewards,
        np.zeros((4, 2)),
        terminated=ends,
        truncated=np.zeros((4, 2), bool),
        final=np.zeros((4, 2)),
        last=[0, 0],
        group_ids=np.zeros(2, np.int64),
    )
    advantages, _ = valued(trajectories, Grpo(Grpo.Config(std_eps=None)))
    assert advantages.tolist() == [[-1, 1], [-1, 1], [5, -5], [5, -5]]


@pytest.mark.parametrize(("num", "bound", "multiple", "sizes"), [(10, 4, 1, [4, 3, 3]), (10, 4, 4, [3, 3, 2, 2])])
def test_microbatches_are_about_equal_and_in_order(num: int, bound: int, multiple: int, sizes: list[int]) -> None:
    zeros = np.zeros((num, 1))
    none = np.zeros((num, 1), bool)
    work = Ticks(
        Models(policy=None), made(zeros, zeros, terminated=none, truncated=none, final=zeros, last=np.zeros(1))
    )
    found = work.microbatches(range(num), bound, multiple=multiple)
    assert [len(part) for part in found] == sizes and [row for part in found for row in part] == list(range(num))
    assert work.microbatches([], bound) == []


def test_a_tick_is_named_by_its_environment() -> None:
    zeros, none = np.zeros((4, 3)), np.zeros((4, 3), bool)
    work = Ticks(
        Models(policy=None), made(zeros, zeros, terminated=none, truncated=none, final=zeros, last=np.zeros(3))
    )
    assert work.describe(9) == "tick 1 of environment 2"
