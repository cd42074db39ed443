# SPDX-License-Identifier: Apache-2.0
"""Termination and truncation are two things: what comes after an episode counts only where it was cut off."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from m2flow.algorithms.formulas.env_gae import Bootstrap, Steps, env_gae

NOT_A_NUMBER = float("nan")
FEW = settings(max_examples=20, deadline=None)
RATES = st.sampled_from([0.0, 0.5, 0.9, 1.0])


@st.composite
def rollouts(draw: st.DrawFn) -> Steps:
    """A few steps of a few environments, some of which end there, for one reason or the other."""
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    ends, by_limit = (torch.rand(shape, generator=generator) < share for share in (0.4, 0.5))
    return Steps(
        rewards=normal(*shape),
        values=normal(*shape),
        last_values=normal(shape[1]),
        terminated=ends & ~by_limit,
        truncated=ends & by_limit,
        final_values=normal(*shape),
    )


@given(steps=rollouts(), gamma=RATES, lam=RATES, bootstrap=st.sampled_from(["final", "current", "none"]))
@FEW
def test_values_that_no_episode_goes_on_with_reach_no_bit_of_a_result(
    steps: Steps, gamma: float, lam: float, bootstrap: Bootstrap
) -> None:
    assert steps.final_values is not None
    over = steps.terminated[-1] | steps.truncated[-1]
    other = replace(
        steps,
        final_values=torch.where(steps.truncated, steps.final_values, NOT_A_NUMBER),
        last_values=torch.where(over, NOT_A_NUMBER, steps.last_values),
    )
    wanted, found = (env_gae(s, gamma=gamma, lam=lam, bootstrap=bootstrap) for s in (steps, other))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@given(steps=rollouts(), gamma=RATES, lam=RATES)
@FEW
def test_an_episode_that_was_cut_off_is_worth_its_final_value_more_than_one_that_ended(
    steps: Steps, gamma: float, lam: float
) -> None:
    assert steps.final_values is not None
    ended = replace(steps, terminated=steps.terminated | steps.truncated, truncated=torch.zeros_like(steps.truncated))
    cut, whole = (env_gae(s, gamma=gamma, lam=lam)[0] for s in (steps, ended))
    torch.testing.assert_close((cut - whole)[steps.truncated], gamma * steps.final_values[steps.truncated])
    torch.testing.assert_close(cut[steps.terminated], whole[steps.terminated])


@given(steps=rollouts(), gamma=RATES, lam=RATES, at=st.integers(0, 4))
@FEW
def test_what_follows_the_end_of_an_episode_does_not_reach_back(
    steps: Steps, gamma: float, lam: float, at: int
) -> None:
    at = min(at, len(steps.rewards) - 1)
    over = steps.terminated[at] | steps.truncated[at]
    rewards = steps.rewards.clone()
    rewards[at + 1 :] += 100
    later = replace(steps, rewards=rewards, last_values=steps.last_values + 100)
    wanted, found = (env_gae(s, gamma=gamma, lam=lam)[0][: at + 1, over] for s in (steps, later))
    assert torch.equal(found, wanted)
