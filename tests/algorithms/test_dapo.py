# SPDX-License-Identifier: Apache-2.0
"""DAPO: which groups and responses are trained on, and what length costs."""

from typing import Any

import pytest
import torch
from vectors import advantages_of, batch_of, cases, close, real

from m2flow.algorithms.base import Outputs, Totals
from m2flow.algorithms.dapo import Dapo
from m2flow.algorithms.formulas.masked import on_last
from m2flow.errors import ConfigError


@cases("dapo_dynamic_sampling")
def test_dynamic_sampling_keeps_the_groups_that_verl_keeps(given, expected, near):
    dapo = Dapo(Dapo.Config())
    assert [k for k, v in given["rewards_by_group"].items() if dapo.keep(real(v))] == expected["kept"]
    assert [k for k, v in given["rewards_by_group"].items() if not dapo.keep(real(v))] == expected["dropped"]


def test_a_range_of_mean_rewards_decides_where_there_is_one():
    dapo = Dapo(Dapo.Config(keep_range=(0.2, 0.8)))
    kept = {name: dapo.keep(real(rewards)) for name, rewards in GROUPS.items()}
    assert kept == {"equal": True, "mixed": True, "low": False, "high": False, "alone": False, "edge": False}


def test_a_range_of_rewards_has_its_lower_end_first():
    with pytest.raises(ConfigError, match="keep_range"):
        Dapo.Config(keep_range=(0.8, 0.2)).check()
    Dapo.Config(keep_range=(0.2, 0.8)).check()


GROUPS = {
    "equal": [0.5, 0.5],
    "mixed": [0.0, 1.0],
    "low": [0.0, 0.0, 0.0, 0.5],
    "high": [1.0, 1.0],
    "alone": [1.0],
    "edge": [0.8],
}


def test_resampling_is_bounded_as_configured():
    assert Dapo(Dapo.Config()).max_resampling_rounds == 4
    assert Dapo(Dapo.Config(resampling_rounds=0)).max_resampling_rounds == 0


def overlong(options: dict, lengths: list[int], longest: int) -> torch.Tensor:
    """What is added to rewards of responses of these lengths."""
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return Dapo(Dapo.Config(**{f"overlong_{name}": value for name, value in options.items()})).overlong(batch_of(mask))


@cases("dapo_overlong")
def test_overlong_penalties_equal_those_of_verl(given, expected, near):
    names = {"length": "max_response_length", "buffer": "overlong_buffer_len", "factor": "penalty_factor"}
    options: dict[str, Any] = {name: given[theirs] for name, theirs in names.items()}
    got = overlong(options, given["response_lengths"], given["max_response_length"])
    close(got, expected["overlong_reward"], near)
    total = got + real(given["base_rewards"])
    close(total, expected["total_reward"], near)
    mask = torch.arange(given["max_response_length"])[None] < torch.tensor(given["response_lengths"])[:, None]
    places = on_last(total, mask)
    for row, position in enumerate(expected["reward_position"]):
        assert total[row] == 0 or places[row].nonzero().tolist() == [[position]]


def test_the_overlong_penalty_grows_over_its_buffer():
    got = overlong({"length": 10, "buffer": 4, "factor": 2.0}, [1, 6, 7, 8, 10, 12], 12)
    assert got.tolist() == [0.0, 0.0, -0.5, -1.0, -2.0, -3.0]
    assert overlong({}, [1, 12], 12).tolist() == [0.0, 0.0]


def test_the_penalty_enters_the_advantage():
    mask = torch.arange(4)[None] < torch.tensor([[2], [4]])
    batch = batch_of(mask, rewards=real([1.0, 1.0]))
    options: dict[str, Any] = {"overlong_length": 4, "overlong_buffer": 2, "std_eps": None}
    assert advantages_of(Dapo(Dapo.Config(**options)), batch).tolist() == [[0.5, 0.5, 0, 0], [-0.5] * 4]


def test_what_was_cut_at_a_limit_is_left_out_of_the_loss_if_so_configured():
    mask = torch.ones(2, 2, dtype=torch.bool)
    batch = batch_of(
        mask, rewards=real([1.0, 0.0]), truncated=torch.tensor([False, True]), old_logprobs=torch.zeros(2, 2).double()
    )
    whole = Dapo(Dapo.Config(std_eps=None)).advantages(batch)
    assert whole.mask.all()
    filtering = Dapo(Dapo.Config(std_eps=None, overlong_filter=True))
    kept = filtering.advantages(batch)
    assert kept.mask.tolist() == [[True, True], [False, False]]
    assert kept.advantages is not None
    assert kept.advantages.tolist() == [[0.5, 0.5], [0.0, 0.0]]
    totals = Totals.of(kept.mask, max_tokens=2)
    assert filtering.loss(kept, Outputs(logprobs=real([[0.0, 0.0], [9.0, 9.0]])), totals=totals).policy.item() == (
        pytest.approx(-0.5)
    )


def test_the_upper_clip_is_the_higher_one():
    dapo = Dapo(Dapo.Config())
    assert (dapo.clip.low, dapo.clip.high, dapo.config.aggregation) == (0.2, 0.28, "token-mean")
