# SPDX-License-Identifier: Apache-2.0
import pytest

from m2flow.errors import ConfigError, LearnerError
from m2flow.trainers.optimization.schedule import ScheduleConfig


def test_linear_goes_up_in_the_warm_up_and_down_to_the_final_fraction() -> None:
    schedule = ScheduleConfig(shape="linear", warmup_steps=2, total_steps=6, final_fraction=0.2)
    assert [schedule.factor(step) for step in range(8)] == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_is_half_way_in_the_middle() -> None:
    schedule = ScheduleConfig(shape="cosine", total_steps=4)
    assert [schedule.factor(step) for step in range(5)] == pytest.approx([1, 0.853553, 0.5, 0.146447, 0], abs=1e-6)


def test_constant_stays_after_the_warm_up() -> None:
    assert [ScheduleConfig(warmup_steps=4).factor(step) for step in (0, 2, 4, 400)] == [0.25, 0.75, 1, 1]


def test_the_run_gives_the_end_where_the_config_does_not() -> None:
    assert ScheduleConfig(shape="linear").factor(5, run_steps=10) == 0.5
    with pytest.raises(LearnerError, match="linear schedule needs total_steps"):
        ScheduleConfig(shape="linear").factor(5)


@pytest.mark.parametrize(
    "options", [{"total_steps": 5}, {"final_fraction": 0.1}, {"shape": "linear", "warmup_steps": 5, "total_steps": 5}]
)
def test_options_without_an_effect_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ScheduleConfig(**options)  # type: ignore[arg-type]
