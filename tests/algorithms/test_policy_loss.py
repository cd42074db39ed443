# SPDX-License-Identifier: Apache-2.0
"""Policy losses of the algorithms, their gradients and what they report."""

from typing import Any

import pytest
import torch
from vectors import batch_of, cases, close, leaf, loss_of, masked, real, totals_of

from m2flow.algorithms.base import Algorithm, Outputs, Totals
from m2flow.algorithms.cispo import Cispo
from m2flow.algorithms.formulas.aggregate import aggregate
from m2flow.algorithms.gmpo import Gmpo
from m2flow.algorithms.gpg import Gpg
from m2flow.algorithms.grpo import Grpo
from m2flow.algorithms.gspo import Gspo
from m2flow.algorithms.sapo import Sapo


@cases("agg_loss")
def test_aggregated_losses_equal_those_of_verl(given, expected, near):
    mask = masked(given)
    got = aggregate(real(given["loss_mat"]), mask, totals=totals_of(given, mask), mode=given["loss_agg_mode"])
    close(got * given.get("dp_size", 1), expected["loss"], near)


def check(algorithm: Algorithm, given: dict[str, Any], *, expected: dict[str, Any], near: dict[str, float]) -> None:
    """Loss, gradient and reported numbers are those expected."""
    loss, gradient = loss_of(algorithm, given)
    size = given.get("dp_size", 1)
    close(loss.policy * size, expected["loss"], near)
    close(gradient * size, expected["grad_log_prob"], near)
    reported = {
        "clip_fraction": loss.sums["policy/clip_fraction"],
        "approx_kl": loss.sums["policy/approx_kl"],
        "ppo_kl": loss.sums["policy/approx_kl"],
        "dual_clip_fraction": loss.sums.get("policy/dual_clip_fraction", 0.0),
        "pg_clipfrac": loss.sums["policy/clip_fraction"],
        "pg_clipfrac_lower": 0.0,
    }
    for name in expected.keys() & reported.keys():
        close(reported[name], expected[name], near)


@cases("policy_loss_ppo")
def test_the_clipped_surrogate_equals_verl_and_openrlhf(given, expected, near):
    options: dict[str, Any] = {
        "clip_low": given["clip_low"],
        "clip_high": given["clip_high"],
        "dual_clip": given["dual_clip_c"],
    }
    grpo = Grpo(Grpo.Config(aggregation=given["loss_agg_mode"], **options))
    check(grpo, given, expected=expected, near=near)
    if "openrlhf_loss" in expected:
        close(loss_of(grpo, given)[0].policy, expected["openrlhf_loss"], near)


@cases("policy_loss_gspo")
def test_gspo_equals_verl_and_openrlhf(given, expected, near):
    options: dict[str, Any] = {"clip_low": given["clip_low"], "clip_high": given["clip_high"]}
    gspo = Gspo(Gspo.Config(aggregation=given["loss_agg_mode"], **options))
    check(gspo, given, expected=expected, near=near)
    if "openrlhf_gspo_loss" in expected:
        close(loss_of(gspo, {**given, "rollout_is_weights": None})[0].policy, expected["openrlhf_gspo_loss"], near)


@cases("policy_loss_cispo")
def test_cispo_equals_verl(given, expected, near):
    options: dict[str, Any] = {"clip_low": given["clip_low"], "clip_high": given["clip_high"]}
    check(Cispo(Cispo.Config(aggregation=given["loss_agg_mode"], **options)), given, expected=expected, near=near)


@cases("policy_loss_gpg")
def test_gpg_equals_verl(given, expected, near):
    check(Gpg(Gpg.Config(aggregation=given["loss_agg_mode"])), given, expected=expected, near=near)


@cases("policy_loss_sapo")
def test_sapo_equals_verl(given, expected, near):
    options: dict[str, Any] = {"tau_positive": given["tau_pos"], "tau_negative": given["tau_neg"]}
    check(Sapo(Sapo.Config(aggregation=given["loss_agg_mode"], **options)), given, expected=expected, near=near)


@cases("policy_loss_gmpo")
def test_gmpo_equals_verl(given, expected, near):
    gmpo = Gmpo(Gmpo.Config(clip_low=given["clip_low"], clip_high=given["clip_high"]))
    loss, gradient = loss_of(gmpo, given)
    close(loss.policy, expected["loss"], near)
    close(gradient, expected["grad_log_prob"], near)
    close(loss.sums["policy/approx_kl"], expected["ppo_kl"], near)
    # verl counts those of positive and of negative advantages under these names
    close(loss.sums["policy/clip_fraction_high"], expected["pg_clipfrac"], near)
    close(loss.sums["policy/clip_fraction_low"], expected["pg_clipfrac_lower"], near)


TRL_AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


def of_trl(given: dict[str, Any]) -> Algorithm:
    """The algorithm and options that TRL's names stand for."""
    kind = given["loss_type"]
    shared: dict[str, Any] = {"aggregation": TRL_AGGREGATIONS[kind], "kl_coef": given["beta"], "kl_clamp": "none"}
    if kind == "cispo":
        return Cispo(Cispo.Config(clip_low=1.0, clip_high=given["epsilon_high"] - 1, **shared))
    if kind == "sapo":
        return Sapo(Sapo.Config(**shared))
    clip: dict[str, Any] = {
        "clip_low": given["epsilon_low"],
        "clip_high": given["epsilon_high"],
        "dual_clip": given["delta"],
    }
    by_level: dict[str, Any] = {"token": Grpo, "sequence": Gspo}
    cls: Any = by_level[given["importance_sampling_level"]]
    return cls(cls.Config(**clip, **shared))


def totals_of_trl(given: dict[str, Any]) -> Totals:
    """TRL divides by what a generation batch has, or by a micro-batch's own count times the accumulation steps."""
    mask, steps = masked(given), given["gradient_accumulation_steps"]
    tokens = int(mask.sum()) * steps
    if given["loss_type"] in ("dapo", "cispo"):
        tokens = given["num_items_in_batch"] * steps / given["steps_per_generation"] / given["num_processes"]
    return Totals(num_tokens=int(tokens), num_sequences=len(mask) * steps, max_tokens=given["max_completion_length"])


def clip_fraction_of_trl(sums: dict[str, float], given: dict[str, Any], *, side: str) -> float:
    """What was clipped on one side; where responses share a ratio TRL counts them, not their tokens."""
    if given["importance_sampling_level"] == "token":
        return sums[f"policy/clip_fraction_{side}"]
    each = [
        loss_of(of_trl(given), {**given, **{k: [given[k][i]] for k in BY_ROW}})[0].sums[f"policy/clip_fraction_{side}"]
        for i in range(len(given["mask"]))
    ]
    return sum(each) / len(each)


BY_ROW = ("mask", "log_prob", "old_log_prob", "ref_log_prob", "advantages")


@cases("trl_grpo_loss")
def test_every_loss_of_trl_is_reached(given, expected, near):
    algorithm, totals = of_trl(given), totals_of_trl(given)
    loss, gradient = loss_of(algorithm, given, totals=totals)
    close(loss.policy, expected["loss"], near)
    close(gradient, expected["grad_log_prob"], near)
    local = loss_of(algorithm, given, totals=totals_of(given, masked(given)))[0].sums
    for side in ("low", "high"):
        if f"clip_{side}_frac" in expected:
            close(clip_fraction_of_trl(local, given, side=side), expected[f"clip_{side}_frac"], near)
    if "kl" in expected:
        close(local["policy/reference_kl"], expected["kl"], near)


def one_row(algorithm: Algorithm, logprobs: Any, *, old: Any, advantage: float, entropies: Any = None) -> Any:
    """Loss of one response whose tokens have the same advantage, and its gradient."""
    x, mask = leaf(logprobs), torch.ones(1, len(logprobs), dtype=torch.bool)
    batch = batch_of(mask, old_logprobs=real([old]), advantages=torch.full(mask.shape, advantage, dtype=torch.double))
    outputs = Outputs(logprobs=x[None], entropies=None if entropies is None else real([entropies]))
    loss = algorithm.loss(batch, outputs, totals=Totals.of(mask, max_tokens=4))
    loss.policy.backward()
    return loss, x.grad


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    ratios, old = real([5.0, 2.0]), [0.0, 0.0]
    plain, slope = one_row(Grpo(Grpo.Config()), ratios.log().tolist(), old=old, advantage=-2.0)
    assert plain.policy.item() == pytest.approx((10 + 4) / 2)
    assert slope.tolist() == pytest.approx([5.0, 2.0])
    bounded, slope = one_row(Grpo(Grpo.Config(dual_clip=3.0)), ratios.log().tolist(), old=old, advantage=-2.0)
    assert bounded.policy.item() == pytest.approx((6 + 4) / 2)
    assert slope.tolist() == pytest.approx([0.0, 2.0])
    assert bounded.sums["policy/dual_clip_fraction"] == pytest.approx(0.5)
    raised, _ = one_row(Grpo(Grpo.Config(dual_clip=3.0)), ratios.log().tolist(), old=old, advantage=2.0)
    assert raised.policy.item() == pytest.approx(-2.4)
    assert raised.sums["policy/dual_clip_fraction"] == 0


def test_the_entropy_bonus_lowers_the_loss_by_the_mean_entropy():
    grpo = Grpo(Grpo.Config(entropy_coef=0.1))
    assert "entropies" in grpo.needs
    loss, _ = one_row(grpo, [0.0, 0.0], old=[0.0, 0.0], advantage=1.0, entropies=[2.0, 4.0])
    assert loss.policy.item() == pytest.approx(-1.0 - 0.1 * 3.0)
    assert loss.sums["policy/entropy"] == pytest.approx(3.0)
    assert "entropies" not in Grpo(Grpo.Config()).needs


def test_a_clipped_token_has_no_gradient_in_grpo_and_keeps_it_in_cispo():
    ratios = real([3.0, 1.0]).log().tolist()
    assert one_row(Grpo(Grpo.Config()), ratios, old=[0.0, 0.0], advantage=1.0)[1].tolist() == [0.0, -0.5]
    kept = one_row(Cispo(Cispo.Config()), ratios, old=[0.0, 0.0], advantage=1.0)[1]
    assert kept.tolist() == pytest.approx([-0.6, -0.5])


def test_the_gate_of_sapo_has_the_slope_of_the_policy_gradient_at_a_ratio_of_one():
    loss, slope = one_row(Sapo(Sapo.Config()), [0.0, 0.0], old=[0.0, 0.0], advantage=3.0)
    assert slope.tolist() == pytest.approx([-1.5, -1.5])
    assert loss.policy.item() == pytest.approx(-3 * 0.5 * 4)
    assert loss.sums["policy/clip_fraction"] == 0


def test_gmpo_takes_the_geometric_mean_of_ratios_clipped_in_log_space():
    loss, slope = one_row(Gmpo(Gmpo.Config()), [1.0, -0.2], old=[0.0, 0.0], advantage=2.0)
    mean = 2.718281828459045 ** ((0.4 - 0.2) / 2)
    assert loss.policy.item() == pytest.approx(-2 * mean)
    assert slope.tolist() == pytest.approx([0.0, -mean])
    assert loss.sums["policy/clip_fraction"] == pytest.approx(0.5)


def test_gpg_has_no_ratio():
    loss, slope = one_row(Gpg(Gpg.Config()), [-1.0, -3.0], old=[-9.0, -9.0], advantage=2.0)
    assert loss.policy.item() == pytest.approx(4.0)
    assert slope.tolist() == [-1.0, -1.0]


def test_rejected_positions_do_not_reach_the_mean_over_a_response_of_gspo():
    gspo = Gspo(Gspo.Config(reject=("token_k2=0.5",), clip_low=1.0, clip_high=9.0, std_eps=None))
    old, rollout = real([[0.0, 0.0], [0.0, 0.0]]), real([[0.0, -3.0], [0.0, 0.0]])
    batch = batch_of(
        torch.ones(2, 2, dtype=torch.bool), old_logprobs=old, rollout_logprobs=rollout, rewards=real([2.0, 0.0])
    )
    ready = gspo.advantages(batch)
    assert ready.mask.tolist() == [[True, False], [True, True]]
    found = gspo.loss(
        ready, Outputs(logprobs=real([[0.5, 7.0], [0.0, 0.0]])), totals=Totals.of(ready.mask, max_tokens=2)
    )
    assert found.policy.item() == pytest.approx((-(2.718281828459045**0.5) + 1) / 2)
