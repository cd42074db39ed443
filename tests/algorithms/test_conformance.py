# SPDX-License-Identifier: Apache-2.0
"""Formulas against values and gradients that public implementations gave (tests/conformance/rl)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from m2flow.algorithms.base import Batch, Totals
from m2flow.algorithms.dapo import Dapo
from m2flow.algorithms.formulas.advantage import group_relative, return_to_go, rloo, whiten
from m2flow.algorithms.formulas.aggregate import aggregate
from m2flow.algorithms.formulas.gae import gae
from m2flow.algorithms.formulas.kl import full_kl, kl
from m2flow.algorithms.formulas.masked import spread, zeroed
from m2flow.algorithms.formulas.surrogate import Clip, cispo, clipped, ratio, sequence_ratio
from m2flow.algorithms.formulas.value import value_loss

FOLDER = Path(__file__).parents[1] / "conformance" / "rl"


def cases(name: str, having: str = "") -> Any:
    """One parameter per case of a file (that has this input): inputs, expected values, tolerances."""
    read = json.loads((FOLDER / f"rl_{name}.json").read_text())
    near = {"rtol": read["rtol"], "atol": read["atol"]}
    found = [pytest.param(c["inputs"], c["expected"], near, id=c["name"]) for c in read["cases"]]
    found = [case for case in found if not having or having in case.values[0]]
    return pytest.mark.parametrize(("given", "expected", "near"), found)


def real(x: Any) -> Tensor:
    """A tensor of doubles."""
    return torch.tensor(x, dtype=torch.float64)


def close(got: Any, expected: Any, near: Any) -> None:
    """Fail unless equal within the file's tolerances."""
    torch.testing.assert_close(got.detach().double(), real(expected), **near)


def masked(given: dict[str, Any]) -> Tensor:
    """The case's mask."""
    return real(given["mask"]) > 0


def reduced(losses: Tensor, given: dict[str, Any]) -> Tensor:
    """Losses aggregated as the case says."""
    mask = masked(given)
    totals = Totals.of(mask, max_tokens=given.get("loss_scale_factor") or mask.shape[1])
    if "batch_num_tokens" in given:
        counts = {"num_tokens": given["batch_num_tokens"], "num_sequences": given["global_batch_size"]}
        totals = Totals(**counts, max_tokens=totals.max_tokens)
    return aggregate(losses, mask, totals=totals, mode=given["loss_agg_mode"]) * given.get("dp_size", 1)


@cases("adv_grpo")
def test_grpo_advantages_equal_those_of_verl(given, expected, near):
    eps = 1e-6 if given["norm_adv_by_std_in_grpo"] else None
    scores, mask = real(given["token_rewards"]).sum(1), masked(given)
    got = group_relative(scores, torch.tensor(given["group_ids"]), eps=eps, singleton="score")
    close(spread(got, mask), expected["advantages"], near)


@cases("trl_group_advantage")
def test_group_advantages_equal_those_of_trl(given, expected, near):
    scores = real(given["rewards"])
    groups = torch.arange(len(scores)) // given["num_generations"]
    options = {"group": {"eps": 1e-4}, "batch": {"eps": 1e-4, "over": "batch"}, "none": {"eps": None}}
    got = group_relative(scores, groups, **options[given["scale_rewards"]])
    close(got, expected["advantages"], near)


@cases("adv_rloo")
def test_rloo_advantages_equal_those_of_verl(given, expected, near):
    got = rloo(real(given["token_rewards"]).sum(1), torch.tensor(given["group_ids"]), singleton="score")
    close(spread(got, masked(given)), expected["advantages"], near)


@cases("adv_rloo_vectorized")
def test_rloo_gives_a_group_of_one_zero(given, expected, near):
    got = rloo(real(given["token_rewards"]).sum(1), torch.tensor(given["group_ids"]))
    close(spread(got, masked(given)), expected["advantages"], near)


@cases("adv_reinforce_pp")
def test_reinforce_pp_advantages_equal_those_of_verl(given, expected, near):
    mask = masked(given)
    got = return_to_go(real(given["token_rewards"]), mask, gamma=given["gamma"])
    close(whiten(got, mask, count_eps=1e-8), expected["advantages"], near)
    close(got, zeroed(real(expected["returns"]), mask).tolist(), near)


@cases("adv_reinforce_pp_baseline")
def test_reinforce_pp_baseline(given, expected, near):
    scores, mask = real(given["token_rewards"]).sum(1), masked(given)
    got = group_relative(scores, torch.tensor(given["group_ids"]), eps=None, singleton="score")
    close(whiten(spread(got, mask), mask), expected["advantages"], near)


@cases("gae_masked")
def test_gae_over_masked_tokens_equals_that_of_verl(given, expected, near):
    mask = masked(given)
    got, returns = gae(real(given["rewards"]), real(given["values"]), mask=mask, gamma=given["gamma"], lam=given["lam"])
    close(got, zeroed(real(expected["advantages"]), mask).tolist(), near)
    close(returns, zeroed(real(expected["returns"]), mask).tolist(), near)
    close(whiten(got, mask), zeroed(real(expected["whitened_advantages"]), mask).tolist(), near)


@cases("agg_loss")
def test_aggregated_losses_equal_those_of_verl(given, expected, near):
    close(reduced(real(given["loss_mat"]), given), expected["loss"], near)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
@cases("kl_estimators", having="log_prob")
def test_kl_estimators_and_gradients_equal_those_of_verl(given, expected, near, estimator):
    x = real(given["log_prob"]).requires_grad_()
    got = kl(x, real(given["ref_log_prob"]), estimator=estimator)
    close(got, expected[estimator], near)
    got.sum().backward()
    close(x.grad, expected[f"grad_sum_{estimator}"], near)


@cases("kl_estimators", having="logits")
def test_the_divergence_over_the_vocabulary_equals_its_definition(given, expected, near):
    close(full_kl(real(given["logits"]), real(given["ref_logits"])), expected["full_kl"], near)


def check_policy(kind: str, given: dict, expected: dict, near: dict) -> None:
    """Loss and gradient of one surrogate, with NaN where masked."""
    mask, nan = masked(given), real(float("nan"))
    leaf = torch.where(mask, real(given["log_prob"]), nan).requires_grad_()
    x, old, advantages = (zeroed(v, mask) for v in (leaf, real(given["old_log_prob"]), real(given["advantages"])))
    clip = Clip(low=given["clip_low"], high=given["clip_high"], dual=given.get("dual_clip_c", given.get("clip_c", 3.0)))
    if kind == "cispo":
        losses = cispo(x, ratio(x, old), advantages=advantages, clip=clip).losses
    elif kind == "gspo":
        bare = Clip(low=clip.low, high=clip.high)
        losses = clipped(sequence_ratio(x, old, mask=mask), advantages, clip=bare).losses
    else:
        losses = clipped(ratio(x, old), advantages, clip=clip).losses
    weights = given.get("rollout_is_weights")
    loss = reduced(losses if weights is None else losses * real(weights), given)
    loss.backward()
    close(loss, expected["loss"], near)
    close(leaf.grad, expected["grad_log_prob"], near)


@cases("policy_loss_ppo")
def test_ppo_losses_and_gradients_equal_those_of_verl(given, expected, near):
    check_policy("ppo", given, expected, near)


@cases("policy_loss_gspo")
def test_gspo_losses_and_gradients_equal_those_of_verl(given, expected, near):
    check_policy("gspo", given, expected, near)


@cases("policy_loss_cispo")
def test_cispo_losses_and_gradients_equal_those_of_verl(given, expected, near):
    check_policy("cispo", given, expected, near)


@cases("value_loss_clipped")
def test_value_losses_and_gradients_equal_those_of_verl(given, expected, near):
    x = real(given["vpreds"]).requires_grad_()
    errors = value_loss(x, real(given["old_values"]), returns=real(given["returns"]), clip=given["clip_range"]).losses
    loss = reduced(errors, given)
    loss.backward()
    close(loss, expected["loss"], near)
    close(x.grad, expected["grad_vpreds"], near)


@cases("dapo_dynamic_sampling")
def test_dynamic_sampling_keeps_the_groups_that_verl_keeps(given, expected, near):
    dapo = Dapo(Dapo.Config())
    kept = {k for k, v in given["rewards_by_group"].items() if dapo.keep(real(v))}
    assert kept.isdisjoint(expected["dropped"])
    assert len(kept) + len(expected["dropped"]) == len(given["rewards_by_group"])


@cases("dapo_overlong")
def test_overlong_penalties_equal_those_of_verl(given, expected, near):
    lengths, rewards = torch.tensor(given["response_lengths"]), real(given["base_rewards"])
    mask = torch.arange(given["max_response_length"])[None] < lengths[:, None]
    nothing = torch.zeros(mask.shape)
    batch = Batch(mask=mask, rewards=rewards, group_ids=lengths, rollout_logprobs=nothing, truncated=lengths > 0)
    names = {"length": "max_response_length", "buffer": "overlong_buffer_len", "factor": "penalty_factor"}
    dapo = Dapo(Dapo.Config(**{f"overlong_{k}": given[v] for k, v in names.items()}))
    close(dapo.overlong(batch), expected["overlong_reward"], near)


def test_equal_numbers_are_whitened_to_zero():
    mask = torch.tensor([[True, True, False], [True, True, True]])
    for value in (1.0, 0.1, 1 / 3, -7e5):
        assert whiten(torch.full((2, 3), value, dtype=torch.float64), mask).abs().max() < 1e-9


def test_a_group_of_equal_scores_gets_exactly_zero_whatever_the_scores():
    for value in (1.0, 0.1, 1 / 3, -7e5):
        scores = torch.tensor([value] * 7 + [0.0, 1.0])
        groups = torch.tensor([3] * 7 + [1, 1])
        for got in (group_relative(scores, groups), rloo(scores, groups), group_relative(scores, groups, over="batch")):
            assert got[:7].tolist() == [0.0] * 7 and got[7:].abs().min() > 0
