# SPDX-License-Identifier: Apache-2.0
"""Weights, rejection and metrics of the difference between rollout and learner."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from vectors import FOLDER, batch_of, cases, close, real

from m2flow.algorithms.formulas.correction import (
    Rule,
    Weighting,
    accepted,
    importance_weights,
    off_policy_metrics,
    weight_metrics,
)
from m2flow.algorithms.grpo import Grpo
from m2flow.errors import ConfigError

SHARED = json.loads((FOLDER / "rl_rollout_correction.json").read_text())["cases"][0]["inputs"]
MASK = real(SHARED["mask"]) > 0
OLD, ROLLOUT = (torch.where(MASK, real(SHARED[f"{who}_log_prob"]), torch.nan) for who in ("train", "rollout"))
BATCH = batch_of(MASK, old_logprobs=OLD, rollout_logprobs=ROLLOUT, rewards=torch.arange(len(MASK), dtype=torch.double))


@cases("rollout_correction", having="upper")
def test_weights_equal_verl(given, expected, near):
    bounds: dict[str, Any] = {"importance_cap": given["upper"], "importance_floor": given["lower"]}
    options: dict[str, Any] = {"importance_level": given["level"], "importance_normalize": given["batch_normalize"]}
    weighted = Grpo(Grpo.Config(**bounds, **options)).advantages(BATCH)
    assert weighted.weights is not None
    close(weighted.weights, expected["weights"], near)
    assert weighted.mask.equal(MASK)


@cases("rollout_correction", having="upper")
def test_metrics_of_weights_equal_verl(given, expected, near):
    how = Weighting(upper=given["upper"], lower=given["lower"], level=given["level"])
    found = importance_weights(OLD, ROLLOUT, mask=MASK, how=how)
    names = {
        "rollout_is_mean": "mean",
        "rollout_is_ratio_fraction_high": "fraction_high",
        "rollout_is_ratio_fraction_low": "fraction_low",
        "rollout_is_eff_sample_size": "effective_sample_size",
        "rollout_is_oob_ratio": "zeroed",
    }
    got = weight_metrics(found, MASK, how=how)
    for name, value in expected["metrics"].items():
        close(found.factor if name == "rollout_is_batch_norm_factor" else got[names[name]], value, near)


@cases("rollout_correction", having="options")
def test_rejection_equals_verl(given, expected, near):
    pairs = zip(given["options"], given["thresholds"], strict=True)
    kept = Grpo(Grpo.Config(reject=tuple(f"{name}={bounds}" for name, bounds in pairs))).advantages(BATCH)
    close(kept.mask.double(), expected["mask"], near)
    close(1 - kept.mask.sum() / MASK.sum().double(), expected["masked_fraction"], near)
    whole = Grpo(Grpo.Config()).advantages(BATCH).advantages
    assert kept.advantages is not None and whole is not None
    assert kept.advantages.equal(torch.where(kept.mask, whole, 0.0))


def test_off_policy_metrics_equal_verl():
    read = json.loads((FOLDER / "rl_rollout_correction.json").read_text())
    expected = next(case["expected"] for case in read["cases"] if case["name"] == "offpolicy_metrics")
    got = off_policy_metrics(OLD[1:], ROLLOUT[1:], mask=MASK[1:])
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        close(got[name], value, {"rtol": read["rtol"], "atol": read["atol"]})


def test_equal_log_probs_give_weights_of_one_and_reject_nothing():
    same = replace(BATCH, rollout_logprobs=OLD)
    rules = ("token_k1=1.0", "token_k2=1e-9", "seq_sum_k3=1e-9", "seq_max_k2=1e-9", "seq_mean_k1=0.9_1.1")
    for level in ("token", "sequence"):
        options: dict[str, Any] = {
            "importance_cap": 1.0,
            "importance_level": level,
            "importance_normalize": True,
            "reject": rules,
        }
        got = Grpo(Grpo.Config(**options)).advantages(same)
        assert got.weights is not None
        assert got.weights.equal(MASK.double())
        assert got.mask.equal(MASK)


def test_weights_worked_by_hand():
    mask = torch.tensor([[True, True], [True, False]])
    old, rollout = real([[0.0, 4.0], [0.5, torch.nan]]).log(), real([[1.0, 1.0], [1.0, torch.nan]]).log()
    old[0, 0] = real(2.0).log()
    capped = importance_weights(old, rollout, mask=mask, how=Weighting(upper=3.0))
    close(capped.weights, [[2.0, 3.0], [0.5, 0.0]], {"rtol": 1e-12, "atol": 0})
    whole = importance_weights(old, rollout, mask=mask, how=Weighting(upper=10.0, level="sequence", normalize=True))
    close(whole.weights, [[8 / 4.25, 8 / 4.25], [0.5 / 4.25, 0.0]], {"rtol": 1e-12, "atol": 0})
    popped = importance_weights(old, rollout, mask=mask, how=Weighting(upper=3.0, lower=1.0))
    close(popped.weights, [[2.0, 0.0], [0.0, 0.0]], {"rtol": 1e-12, "atol": 0})
    metrics = weight_metrics(capped, mask, how=Weighting(upper=3.0))
    assert metrics["mean"] == pytest.approx(5.5 / 3)
    assert (metrics["fraction_high"], metrics["fraction_low"]) == pytest.approx((1 / 3, 0.0))


def test_the_bounds_of_k1_are_those_of_rollout_over_learner():
    mask, old, rollout = torch.tensor([[True, True]]), real([[2.0, 0.4]]).log(), real([[1.0, 1.0]]).log()
    assert accepted(old, rollout, mask=mask, rule=Rule.parse("token_k1=0.4_2.0")).tolist() == [[True, False]]
    assert accepted(old, rollout, mask=mask, rule=Rule.parse("token_k1=2.1")).tolist() == [[True, False]]


@pytest.mark.parametrize(
    "text", ["token_k4=1", "token_k2", "token_k2=0.1_0.2", "seq_sum_k1=2_1", "seq_max_k1=2", "token_k3=-1"]
)
def test_a_rule_that_is_written_wrongly_is_an_error_of_configuration(text):
    with pytest.raises(ConfigError, match="reject"):
        Grpo.Config(reject=(text,))


def test_options_of_importance_weights_without_a_cap_are_a_mistake():
    wrong: list[Any] = [{"importance_floor": 0.5}, {"importance_level": "sequence"}, {"importance_normalize": True}]
    for options in wrong:
        with pytest.raises(ConfigError, match="importance_cap"):
            Grpo.Config(**options).check()
    with pytest.raises(ConfigError, match="above importance_cap"):
        Grpo.Config(importance_cap=1.0, importance_floor=2.0).check()
    Grpo.Config(importance_cap=2.0, importance_floor=0.5, importance_level="sequence").check()
