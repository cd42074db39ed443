# SPDX-License-Identifier: Apache-2.0
"""PPO: advantage estimation, the critic's loss, whitening, and the stop at a target divergence."""

from typing import Any

import pytest
import torch
from vectors import batch_of, cases, close, leaf, masked, real, totals_of

from m2flow.algorithms.base import Outputs, Totals
from m2flow.algorithms.formulas.masked import required, zeroed
from m2flow.algorithms.ppo import Ppo
from m2flow.errors import ConfigError


@cases("gae_masked")
def test_advantages_and_returns_over_masked_tokens_equal_verl(given, expected, near):
    mask = masked(given)
    dense, values = (torch.where(mask, real(given[name]), torch.nan) for name in ("rewards", "values"))
    batch = batch_of(mask, token_rewards=dense, values=values)
    options: dict[str, Any] = {"gamma": given["gamma"], "lam": given["lam"]}
    plain = Ppo(Ppo.Config(whiten=False, **options)).advantages(batch)
    close(plain.advantages, zeroed(real(expected["advantages"]), mask).tolist(), near)
    close(plain.returns, zeroed(real(expected["returns"]), mask).tolist(), near)
    for whitening in ("exact", "verl"):
        white = Ppo(Ppo.Config(whitening=whitening, **options)).advantages(batch)
        close(white.advantages, zeroed(real(expected["whitened_advantages"]), mask).tolist(), near)
        close(white.returns, zeroed(real(expected["returns"]), mask).tolist(), near)


@cases("value_loss_clipped")
def test_the_loss_of_the_critic_equals_verl_and_openrlhf(given, expected, near):
    mask, x = masked(given), leaf(given["vpreds"])
    nothing = torch.zeros(mask.shape, dtype=torch.float64)
    fields: dict[str, Any] = {"values": real(given["old_values"]), "returns": real(given["returns"])}
    batch = batch_of(mask, old_logprobs=nothing, advantages=nothing, **fields)
    ppo = Ppo(Ppo.Config(value_clip=given["clip_range"], aggregation=given["loss_agg_mode"]))
    loss = ppo.loss(batch, Outputs(logprobs=nothing, values=x), totals=totals_of(given, mask))
    value = required(loss.value)
    value.backward()
    close(value, expected["loss"], near)
    close(x.grad, expected["grad_vpreds"], near)
    close(loss.sums["critic/clip_fraction"], expected["clip_fraction"], near)
    if "openrlhf_loss" in expected:
        close(value, expected["openrlhf_loss"], near)


def value_losses(**options) -> list[float]:
    """The critic's loss of one token whose value went from 0 to 1 while its return is 0.5, or 2."""
    found, one = [], torch.ones(1, 1, dtype=torch.bool)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    for target in (0.5, 2.0):
        batch = batch_of(one, values=zero, returns=real([[target]]), advantages=zero, old_logprobs=zero)
        outputs = Outputs(logprobs=zero, values=real([[1.0]]))
        loss = Ppo(Ppo.Config(**options)).loss(batch, outputs, totals=Totals.of(one, max_tokens=1))
        found.append(required(loss.value).item())
    return found


def test_a_clipped_value_counts_where_its_error_is_the_larger():
    assert value_losses(value_clip=None) == pytest.approx([0.5 * 0.25, 0.5 * 1.0])
    assert value_losses(value_clip=0.2) == pytest.approx([0.5 * 0.25, 0.5 * 1.8**2])
    assert value_losses(value_clip=None, value_coef=2.0) == pytest.approx([0.25, 1.0])


GAP = torch.tensor([[True, False, True]])


def test_masked_tokens_between_are_skipped_or_are_steps_that_discount():
    batch = batch_of(GAP, rewards=real([1.0]), values=real([[0.5, 9.0, 0.25]]))
    options: dict[str, Any] = {"gamma": 0.5, "lam": 0.5, "whiten": False}
    last = 1 - 0.25
    skipped = Ppo(Ppo.Config(**options)).advantages(batch)
    close(skipped.advantages, [[0.5 * 0.25 - 0.5 + 0.25 * last, 0, last]], {"rtol": 1e-12, "atol": 1e-12})
    stepped = Ppo(Ppo.Config(observation_gaps="step", **options)).advantages(batch)
    between = 0.5 * 0.25 + 0.25 * last
    close(stepped.advantages, [[-0.5 + 0.25 * between, 0, last]], {"rtol": 1e-12, "atol": 1e-12})
    close(stepped.returns, [[0.25 * between, 0, 1.0]], {"rtol": 1e-12, "atol": 1e-12})


def test_whitening_of_openrlhf_divides_by_the_biased_deviation():
    batch = batch_of(GAP, token_rewards=real([[1.0, 0.0, 3.0]]), values=torch.zeros(1, 3, dtype=torch.float64))
    options: dict[str, Any] = {"gamma": 0.0, "lam": 0.0}
    close(Ppo(Ppo.Config(whitening="openrlhf", **options)).advantages(batch).advantages, [[-1, 0, 1]], NEAR)
    close(Ppo(Ppo.Config(**options)).advantages(batch).advantages, [[-(0.5**0.5), 0, 0.5**0.5]], NEAR)


NEAR = {"rtol": 1e-7, "atol": 1e-9}


def test_an_update_stops_once_the_divergence_exceeds_its_target():
    ppo = Ppo(Ppo.Config(target_kl=0.1))
    assert [ppo.stop_early({"policy/approx_kl": kl}) for kl in (-1.0, 0.1, 0.11)] == [False, False, True]
    assert not Ppo(Ppo.Config()).stop_early({"policy/approx_kl": 1e9})


def test_a_whitening_that_is_off_has_no_convention():
    with pytest.raises(ConfigError, match="whitening is verl"):
        Ppo.Config(whiten=False, whitening="verl").check()
    Ppo.Config(whiten=False).check()
