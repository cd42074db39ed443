# SPDX-License-Identifier: Apache-2.0
"""Divergence from the reference: estimators, and where it enters."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from vectors import advantages_of, batch_of, cases, close, leaf, real

from m2flow.algorithms.base import Outputs, Totals
from m2flow.algorithms.formulas.kl import full_kl, kl
from m2flow.algorithms.formulas.masked import required
from m2flow.algorithms.grpo import Grpo
from m2flow.algorithms.ppo import Ppo
from m2flow.algorithms.reinforce_pp import ReinforcePp

NEAR = {"rtol": 1e-9, "atol": 1e-12}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
@cases("kl_estimators", having="log_prob")
def test_estimators_and_gradients_equal_verl(given, expected, near, estimator):
    x = leaf(given["log_prob"])
    got = kl(x, real(given["ref_log_prob"]), estimator=estimator)
    close(got, expected[estimator], near)
    got.sum().backward()
    close(x.grad, expected[f"grad_sum_{estimator}"], near)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@cases("kl_estimators", having="log_prob")
def test_clamped_estimators_equal_openrlhf(given, expected, near, estimator):
    got = kl(real(given["log_prob"]), real(given["ref_log_prob"]), estimator=estimator, clamp="all")
    close(got, expected[f"openrlhf_{estimator}"], {"rtol": 1e-4, "atol": near["atol"]})


@cases("kl_estimators", having="logits")
def test_the_divergence_over_the_vocabulary_equals_its_definition(given, expected, near):
    close(full_kl(real(given["logits"]), real(given["ref_logits"])), expected["full_kl"], near)


def test_estimators_without_a_clamp_are_unbounded():
    gap = real([[30.0, -30.0, 4.0]])
    zero = torch.zeros_like(gap)
    free = [[29.0 + math.exp(-30), math.exp(30) - 31, 3.0 + math.exp(-4)]]
    close(kl(gap, zero, estimator="k3", clamp="none"), free, NEAR)
    assert kl(gap, zero, estimator="k3").tolist()[0][:2] == [10.0, 10.0]
    assert kl(gap, zero, estimator="k1").tolist() == gap.tolist()
    assert kl(gap, zero, estimator="k2", clamp="all").tolist() == [[10.0, 10.0, 8.0]]


MASK = torch.tensor([[True, True, False], [True, True, True]])
OLD = real([[0.4, 0.1, torch.nan], [0.0, 0.0, 0.0]])
BATCH = batch_of(
    MASK,
    rewards=real([1.0, 0.0]),
    old_logprobs=OLD,
    reference_logprobs=real([[0.2, 0.2, torch.nan], [0.0, 0.5, 0.0]]),
    values=torch.zeros(2, 3, dtype=torch.float64),
)
IN_REWARD = {"k1": [[0.2, -0.1, 0], [0, -0.5, 0]], "k2": [[0.02, 0.005, 0], [0, 0.125, 0]]}


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_a_divergence_in_the_reward_is_taken_off_each_token(estimator):
    options: dict[str, Any] = {"kl_reward_coef": 2.0, "kl_estimator": estimator}
    off = 2 * real(IN_REWARD[estimator])
    grpo = Grpo(Grpo.Config(std_eps=None, **options))
    totals = real([1.0, 0.0]) - off.sum(1)
    half = ((totals[0] - totals[1]) / 2).item()
    close(advantages_of(grpo, BATCH), [[half, half, 0], [-half, -half, -half]], NEAR)
    ppo = Ppo(Ppo.Config(gamma=1.0, lam=1.0, whiten=False, **options)).advantages(BATCH)
    rewards = real([[0, 1, 0], [0, 0, 0]]) - off
    expected = torch.where(MASK, rewards.flip(1).cumsum(1).flip(1), 0.0)
    close(ppo.advantages, expected.tolist(), NEAR)
    plus_plus = Ppo(Ppo.Config(gamma=1.0, lam=1.0, whitening="verl", **options)).advantages(BATCH).advantages
    close(
        advantages_of(ReinforcePp(ReinforcePp.Config(whitening="verl", **options)), BATCH),
        required(plus_plus).tolist(),
        NEAR,
    )


def test_a_divergence_in_the_reward_has_no_gradient_and_one_in_the_loss_has_the_estimators():
    x, reference = leaf([[0.4, 0.1]]), real([[0.2, 0.2]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    batch = batch_of(mask, old_logprobs=x, reference_logprobs=reference)
    assert not advantages_of(Grpo(Grpo.Config(kl_reward_coef=1.0)), batch).requires_grad
    slopes: Any = {"k1": [0.5, 0.5], "k2": [0.1, -0.05], "k1+": [0.1, -0.05]}
    for estimator, slope in slopes.items():
        x.grad = None
        grpo = Grpo(Grpo.Config(kl_coef=1.0, kl_estimator=estimator))
        ready = replace(batch, old_logprobs=x.detach(), advantages=torch.zeros_like(reference))
        loss = grpo.loss(ready, Outputs(logprobs=x), totals=Totals.of(mask, max_tokens=2))
        loss.policy.backward()
        close(x.grad, [slope], NEAR)


def test_a_divergence_in_the_reward_is_reported_and_not_added_to_the_loss():
    mask = torch.ones(1, 2, dtype=torch.bool)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    batch = batch_of(mask, old_logprobs=zero, reference_logprobs=real([[-0.5, -0.1]]), advantages=zero)
    grpo = Grpo(Grpo.Config(kl_reward_coef=1.0, kl_estimator="k1"))
    loss = grpo.loss(batch, Outputs(logprobs=zero), totals=Totals.of(mask, max_tokens=2))
    assert loss.policy.item() == 0
    assert loss.sums["policy/reference_kl"] == pytest.approx(0.3)


def test_what_is_computed_follows_from_where_the_divergence_enters():
    nowhere, in_loss = Grpo(Grpo.Config()), Grpo(Grpo.Config(kl_coef=0.1))
    in_reward = Grpo(Grpo.Config(kl_reward_coef=0.1))
    assert "reference_logprobs" not in nowhere.needs
    assert "reference_logprobs" in in_loss.loss_only
    assert {"reference_logprobs", "old_logprobs"} <= in_reward.needs
    assert not {"reference_logprobs", "old_logprobs"} & in_reward.loss_only


def test_dense_rewards_and_the_divergence_add_up():
    batch = replace(BATCH, token_rewards=torch.where(MASK, 1.0, torch.nan).double())
    got = Grpo(Grpo.Config(kl_reward_coef=1.0, kl_estimator="k1")).token_rewards(batch)
    close(got, [[0.8, 1.1, 0.0], [1.0, 1.5, 1.0]], NEAR)
    assert required(batch.token_rewards)[0, 2].isnan()
