# SPDX-License-Identifier: Apache-2.0
"""Formulas of policies that control: environments, Gaussians, soft actor-critic, the adaptive learning rate."""

from typing import Any

import pytest
import torch
from vectors import cases, close, leaf, real

from m2flow.algorithms.formulas.adaptive_kl import adapted_rate
from m2flow.algorithms.formulas.env_gae import Steps, bootstrapped, env_gae, standardized
from m2flow.algorithms.formulas.gaussian import gaussian_entropy, gaussian_kl, gaussian_logprobs
from m2flow.algorithms.formulas.masked import required
from m2flow.algorithms.formulas.soft import actor_loss, alpha_loss, critic_loss, move_targets, soft_targets
from m2flow.algorithms.formulas.surrogate import Clip, clipped, ratio
from m2flow.algorithms.formulas.value import value_loss


@cases("gae_env_sb3")
def test_advantages_with_the_value_of_the_final_observation_equal_sb3(given, expected, near):
    truncated = real(given["truncated"]) > 0
    steps = Steps(
        rewards=real(given["rewards"]),
        values=real(given["values"]),
        last_values=real(given["last_values"]),
        terminated=real(given["terminated"]) > 0,
        truncated=truncated,
        final_values=torch.where(truncated, real(given["terminal_obs_values"]), torch.nan),
    )
    close(bootstrapped(steps, gamma=given["gamma"]), expected["bootstrapped_rewards"], near)
    advantages, returns = env_gae(steps, gamma=given["gamma"], lam=given["lam"])
    close(advantages, expected["advantages"], near)
    close(returns, expected["returns"], near)


@cases("gae_env_rsl_rl")
def test_advantages_with_the_value_of_the_current_state_equal_rsl_rl(given, expected, near):
    dones, time_outs = real(given["dones"]) > 0, real(given["time_outs"]) > 0
    steps = Steps(
        rewards=real(given["rewards"]),
        values=real(given["values"]),
        last_values=real(given["last_values"]),
        terminated=dones & ~time_outs,
        truncated=time_outs,
    )
    options: dict[str, Any] = {"gamma": given["gamma"], "bootstrap": "current"}
    close(bootstrapped(steps, **options), expected["bootstrapped_rewards"], near)
    advantages, returns = env_gae(steps, lam=given["lam"], **options)
    close(advantages, expected["advantages"], near)
    close(returns, expected["returns"], near)
    close(standardized(advantages), expected["normalized_advantages"], near)


def test_a_time_out_is_made_up_for_as_configured():
    steps = Steps(
        rewards=real([[1.0], [1.0]]),
        values=real([[2.0], [3.0]]),
        last_values=real([7.0]),
        terminated=torch.zeros(2, 1, dtype=torch.bool),
        truncated=torch.tensor([[True], [False]]),
        final_values=real([[10.0], [torch.nan]]),
    )
    second = 1 + 0.5 * 7 - 3
    firsts: Any = {"final": 1 + 5 - 2.0, "current": 1 + 1 - 2.0, "none": 1 - 2.0}
    for bootstrap, first in firsts.items():
        advantages, returns = env_gae(steps, gamma=0.5, lam=0.9, bootstrap=bootstrap)
        assert advantages[:, 0].tolist() == pytest.approx([first, second])
        assert returns[:, 0].tolist() == pytest.approx([first + 2, second + 3])


def test_final_values_are_asked_for_where_they_are_needed():
    blank = torch.zeros(1, 1)
    flags: dict[str, Any] = {"terminated": blank > 0, "truncated": blank > 0}
    steps = Steps(rewards=blank, values=blank, last_values=blank[0], **flags)
    with pytest.raises(ValueError, match="final_values"):
        env_gae(steps, gamma=1.0, lam=1.0)


@cases("sac")
def test_soft_actor_critic_equals_sb3(given, expected, near):
    fixed, log_alpha = given["fixed_alpha"], given["log_alpha"]
    log_alpha = None if log_alpha is None else leaf(log_alpha)
    alpha = real(fixed) if log_alpha is None else log_alpha.detach().exp()
    close(alpha, expected["ent_coef"], near)
    options: dict[str, Any] = {"alpha": alpha, "gamma": given["gamma"]}
    after: dict[str, Any] = {"next_values": real(given["q_target_next"]), "next_logprobs": real(given["next_log_prob"])}
    targets = soft_targets(real(given["rewards"]), real(given["dones"]), **after, **options)
    close(targets, expected["target_q"], near)
    q, q_pi, logprobs = leaf(given["q_current"]), leaf(given["q_pi"]), leaf(given["log_prob"])
    critic, actor = critic_loss(q, targets), actor_loss(logprobs, q_pi, alpha=alpha)
    (critic + actor).backward()
    close(critic, expected["critic_loss"], near)
    close(actor, expected["actor_loss"], near)
    for x, name in ((q, "grad_q"), (q_pi, "grad_q_pi"), (logprobs, "grad_log_prob")):
        close(x.grad, expected[name], near)
    if log_alpha is not None:
        loss = alpha_loss(log_alpha, logprobs, target_entropy=given["target_entropy"])
        loss.backward()
        close(loss, expected["alpha_loss"], near)
        close(required(log_alpha.grad).reshape(1), expected["grad_log_alpha"], near)
    target = real(given["polyak_target_before"])
    move_targets([target], [real(given["polyak_online"])], tau=given["polyak_tau"])
    close(target, expected["polyak_target"], near)


def test_conventions_of_other_soft_actor_critics_are_options():
    values, targets = real([[1.0, 3.0], [0.0, 0.0]]), real([0.0, 1.0])
    assert critic_loss(values, targets, factor=1.0).item() == pytest.approx((1 + 4) / 2 + (0 + 1) / 2)
    log_alpha = leaf(0.5)
    loss = alpha_loss(log_alpha, real([1.0, 3.0]), target_entropy=-1.0, through_exp=True)
    assert loss.item() == pytest.approx(-(2.718281828459045**0.5) * 1.0)


@cases("rsl_ppo_adaptive_kl")
def test_an_update_of_a_gaussian_policy_equals_rsl_rl(given, expected, near):
    mean, std, values = leaf(given["new_mean"]), leaf(given["new_std"]), leaf(given["values"])
    old = real(given["old_mean"]), real(given["old_std"])
    kl = gaussian_kl(old, (mean, std)).mean().item()
    rate = adapted_rate(given["learning_rate"], kl, desired=given["desired_kl"])
    close(rate, expected["new_learning_rate"], near)
    actions, advantages = real(given["actions"]), real(given["advantages"])
    logprobs = gaussian_logprobs(actions, mean, std=std)[:, None]
    before = gaussian_logprobs(actions, old[0], std=old[1])[:, None]
    clip = given["clip_param"]
    surrogate = clipped(ratio(logprobs, before), advantages[:, None], clip=Clip(low=clip, high=clip)).losses.mean()
    errors = value_loss(values, real(given["old_values"]), returns=real(given["returns"]), clip=clip)
    value, entropy = 2 * errors.losses.mean(), gaussian_entropy(std).mean()
    close(surrogate, expected["surrogate_loss"], near)
    close(value, expected["value_loss"], near)
    close(entropy, expected["entropy"], near)
    (surrogate + given["value_loss_coef"] * value - given["entropy_coef"] * entropy).backward()
    for x, name in ((mean, "grad_new_mean"), (std, "grad_new_std"), (values, "grad_values")):
        close(x.grad, expected[name], near)
    close(kl, expected["kl_mean"], near)


def test_the_learning_rate_follows_the_divergence_within_bounds():
    for kl, expected in ((0.021, 2e-3), (0.02, 3e-3), (0.005, 3e-3), (0.0049, 4.5e-3), (0.0, 3e-3)):
        assert adapted_rate(3e-3, kl, desired=0.01) == pytest.approx(expected)
    assert adapted_rate(1.2e-5, 1.0, desired=0.01) == 1e-5
    assert adapted_rate(9e-3, 1e-3, desired=0.01) == 1e-2


def test_the_divergence_of_gaussians_worked_by_hand():
    kl = gaussian_kl((real([0.0, 1.0]), real([1.0, 2.0])), (real([1.0, 1.0]), real([1.0, 1.0])))
    assert kl.item() == pytest.approx(0.5 + (-0.6931471805599453 + 4 / 2 - 0.5))
    assert gaussian_kl((real([3.0]), real([0.2])), (real([3.0]), real([0.2]))).item() == 0
