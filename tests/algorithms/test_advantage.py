# SPDX-License-Identifier: Apache-2.0
"""Advantages without a critic."""

from typing import Any

import pytest
import torch
from vectors import advantages_of, batch_of, batch_of_rewards, cases, close, masked, real

from m2flow.algorithms.formulas.advantage import (
    against_greedy,
    best_of_group,
    group_relative,
    length_weighted,
    return_to_go,
    rloo,
    whiten,
)
from m2flow.algorithms.formulas.masked import spread, zeroed
from m2flow.algorithms.gpg import Gpg
from m2flow.algorithms.grpo import Grpo
from m2flow.algorithms.grpo_passk import GrpoPassk
from m2flow.algorithms.opo import Opo
from m2flow.algorithms.reinforce_pp import ReinforcePp
from m2flow.algorithms.rloo import Rloo


def same(algorithm: Any, given: Any, *, expected: Any, near: Any) -> None:
    """Fail unless the algorithm's advantages are the expected ones."""
    close(advantages_of(algorithm, batch_of_rewards(given)), expected["advantages"], near)


@cases("adv_grpo")
def test_grpo_equals_verl(given, expected, near):
    eps = 1e-6 if given["norm_adv_by_std_in_grpo"] else None
    same(Grpo(Grpo.Config(std_eps=eps, singleton="score")), given, expected=expected, near=near)
    close(real(expected["returns"]), expected["advantages"], near)
    got = advantages_of(Grpo(Grpo.Config(std_eps=eps, singleton="score")), batch_of_rewards(given))
    close(got, expected["advantages_verl_vectorized_fp32"], {"rtol": 1e-5, "atol": 1e-5})


@cases("trl_group_advantage")
def test_grpo_equals_trl(given, expected, near):
    rewards = real(given["rewards"])
    options: dict[str, Any] = {
        "group": {"std_eps": 1e-4},
        "batch": {"std_eps": 1e-4, "std_over": "batch"},
        "none": {"std_eps": None},
    }
    groups = torch.arange(len(rewards)) // given["num_generations"]
    batch = batch_of(torch.ones(len(rewards), 1, dtype=torch.bool), rewards=rewards, group_ids=groups)
    got = advantages_of(Grpo(Grpo.Config(**options[given["scale_rewards"]])), batch)
    close(got[:, 0], expected["advantages"], near)


@cases("adv_grpo_passk")
def test_grpo_for_pass_at_k_equals_verl(given, expected, near):
    eps = 1e-6 if given["norm_adv_by_std"] else None
    same(GrpoPassk(GrpoPassk.Config(std_eps=eps)), given, expected=expected, near=near)


@cases("adv_gpg")
def test_gpg_equals_verl(given, expected, near):
    same(Gpg(Gpg.Config(singleton="score")), given, expected=expected, near=near)


@cases("adv_opo")
def test_opo_equals_verl(given, expected, near):
    same(Opo(Opo.Config(singleton="score")), given, expected=expected, near=near)


@cases("adv_remax")
def test_the_advantage_over_the_greedy_response_equals_verl(given, expected, near):
    rewards, baselines = real(given["token_rewards"]), real(given["reward_baselines"])
    got, returns = against_greedy(rewards, masked(given), baselines=baselines)
    close(got, expected["advantages"], near)
    close(returns, expected["returns"], near)


@cases("adv_rloo")
def test_rloo_equals_verl(given, expected, near):
    same(Rloo(Rloo.Config(singleton="score")), given, expected=expected, near=near)


@cases("adv_rloo_vectorized")
def test_rloo_gives_a_group_of_one_zero(given, expected, near):
    same(Rloo(Rloo.Config()), given, expected=expected, near=near)


@cases("adv_reinforce_pp")
def test_reinforce_pp_equals_verl(given, expected, near):
    mask, rewards = masked(given), real(given["token_rewards"])
    batch = batch_of(mask, token_rewards=torch.where(mask, rewards, torch.nan))
    algorithm = ReinforcePp(ReinforcePp.Config(gamma=given["gamma"], whitening="verl"))
    close(advantages_of(algorithm, batch), expected["advantages"], near)
    got = return_to_go(rewards, mask, gamma=given["gamma"])
    close(got, zeroed(real(expected["returns"]), mask).tolist(), near)


@cases("adv_reinforce_pp_baseline")
def test_reinforce_pp_with_a_baseline_equals_verl(given, expected, near):
    same(ReinforcePp(ReinforcePp.Config(baseline=True, whitening="verl")), given, expected=expected, near=near)


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3, -7e5])
def test_equal_numbers_are_whitened_to_zero(value):
    mask = torch.tensor([[True, True, False], [True, True, True]])
    for how in ("exact", "openrlhf"):
        assert whiten(torch.full((2, 3), value, dtype=torch.float64), mask, how=how).abs().max() < 1e-9


def test_biased_whitening_divides_by_n_and_has_a_least_variance():
    mask = torch.tensor([[True, True, True, False]])
    got = whiten(real([[1.0, 2.0, 3.0, 9.0]]), mask, how="openrlhf")
    close(got, [[-(1.5**0.5), 0.0, 1.5**0.5, 0.0]], {"rtol": 1e-9, "atol": 1e-12})
    near_equal = whiten(real([[0.0, 0.0, 3e-6, 9.0]]), mask, how="openrlhf")
    close(near_equal, [[-1e-2, -1e-2, 2e-2, 0.0]], {"rtol": 1e-9, "atol": 1e-12})


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3, -7e5])
def test_a_group_of_equal_scores_gets_exactly_zero_whatever_the_scores(value):
    scores, groups = torch.tensor([value] * 7 + [0.0, 1.0]), torch.tensor([3] * 7 + [1, 1])
    lengths = torch.tensor([1, 2, 3, 4, 5, 6, 7, 2, 3])
    found = [
        group_relative(scores, groups),
        group_relative(scores, groups, over="batch"),
        rloo(scores, groups),
        length_weighted(scores, groups, lengths=lengths),
    ]
    for got in found:
        assert got[:7].tolist() == [0.0] * 7
        assert got[7:].abs().min() > 0
    assert best_of_group(scores, groups)[:7].tolist() == [0.0] * 7


def test_the_best_of_a_group_gets_its_lead_over_the_second():
    scores, groups = real([0.5, 3.0, 1.0, 2.0, 2.0, 7.0]), torch.tensor([4, 4, 4, 9, 9, 1])
    assert best_of_group(scores, groups, eps=None).tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 0.0]
    deviation = (((0.5 - 1.5) ** 2 + (3 - 1.5) ** 2 + (1 - 1.5) ** 2) / 2) ** 0.5
    assert best_of_group(scores, groups, eps=0.0)[1].item() == pytest.approx(2 / deviation, rel=1e-12)


def test_the_baseline_of_opo_is_the_score_of_a_group_per_token():
    scores, groups, lengths = real([1.0, 0.0, 5.0]), torch.tensor([0, 0, 1]), torch.tensor([3, 1, 4])
    assert length_weighted(scores, groups, lengths=lengths).tolist() == [0.25, -0.75, 0.0]
    assert length_weighted(scores, groups, lengths=lengths, singleton="score").tolist() == [0.25, -0.75, 5.0]


def test_gpg_raises_advantages_where_few_samples_score():
    batch = batch_of(
        torch.ones(4, 1, dtype=torch.bool), rewards=real([1.0, 0.0, 0.0, 0.0]), group_ids=torch.tensor([0, 0, 1, 1])
    )
    assert advantages_of(Gpg(Gpg.Config()), batch)[:, 0].tolist() == [2.0, -2.0, 0.0, 0.0]
    assert advantages_of(Gpg(Gpg.Config(f_norm=4.0)), batch)[:, 0].tolist() == [0.5, -0.5, 0.0, 0.0]
    scaled = advantages_of(Gpg(Gpg.Config(std_eps=0.0)), batch)[:, 0]
    assert scaled[:2].tolist() == pytest.approx([2 / 0.5**0.5 / 1.0, -2 / 0.5**0.5])


def test_scores_are_spread_over_counted_positions():
    mask = torch.tensor([[True, False, True]])
    assert spread(real([2.0]), mask).tolist() == [[2.0, 0.0, 2.0]]
