# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from m2flow.observe.headlines import KL, REWARD, clock, figure, sparkline


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.73449, "0.734"),
        (0.0123, "0.0123"),
        (0.00213, "0.00213"),
        (0.001, "0.001"),
        (0.0001, "1e-4"),
        (-2.5e-7, "-2.5e-7"),
        (12.345, "12.3"),
        (2410.4, "2,410"),
        (1234567.0, "1,234,567"),
        (999_999_999_999_999.0, "999,999,999,999,999"),
        (1e300, "1e300"),
        (-3.21e15, "-3.21e15"),
        (3, "3"),
        (0.0, "0"),
        (1.0, "1"),
        (math.nan, "NaN"),
        (-math.inf, "-∞"),
        (None, "–"),
    ],
)
def test_numbers_are_written_in_three_digits(value, written):
    assert figure(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(4.23, "4.2 s"), (59.97, "1:00"), (187, "3:07"), (7987, "2:13:07"), (94_400, "1 d 02:13")],
)
def test_durations_are_written_like_a_clock(seconds, written):
    assert clock(seconds) == written


def test_a_sparkline_goes_from_the_least_to_the_largest():
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == "▁▂▃▄▅▆▇█"


def test_a_sparkline_of_many_values_keeps_its_width_and_of_equal_ones_is_flat():
    assert len(sparkline(list(range(1000)), width=24)) == 24
    assert sparkline([0.5, math.nan, 0.5]) == "▄▄"
    assert sparkline([math.nan]) == ""


def test_the_leading_metric_is_the_mean_reward_and_never_a_count_of_samples():
    assert REWARD.value({"reward/samples": 8.0, "reward/mean": 0.7}) == 0.7
    assert REWARD.value({"reward": 0.6, "policy/approx_kl": 0.1}) == 0.6
    assert REWARD.value({"reward/samples": 8.0, "reward/samples_without_reward": 8.0}) is None
    assert KL.key(["policy/approx_kl", "policy/reference_kl"]) == "policy/reference_kl"
