# SPDX-License-Identifier: Apache-2.0
"""Plans: what is set by hand, what follows, how it is shown and kept."""

from pathlib import Path

import pytest

from m2flow.errors import ConfigError
from m2flow.runtime.devices import SlotConfig
from m2flow.runtime.placement import Plan, StageConfig, make, pins

SLOTS = [SlotConfig(kind="cpu", cores=(i,), memory_bytes=2**30) for i in range(4)]
LIMITS = {"rollout": None, "reward": None, "learner": 1}


def test_every_role_has_all_slots_that_it_can_use_unless_pinned():
    plan = make(SLOTS, LIMITS, pins={"reward": StageConfig(slots=(3,), chunk=4)})
    assert {name: stage.slots for name, stage in plan.stages.items()} == {
        "rollout": (0, 1, 2, 3),
        "reward": (3,),
        "learner": (0,),
    }
    assert plan.stages["reward"].chunk == 4


def test_pins_are_read_from_short_texts():
    found = pins(["rollout=0,2", "rollout.chunk=4", "learner=1", "reward.bound=8"])
    assert found == {
        "rollout": StageConfig(slots=(0, 2), chunk=4),
        "learner": StageConfig(slots=(1,)),
        "reward": StageConfig(bound=8),
    }


@pytest.mark.parametrize("text", ["rollout", "rollout=", "rollout=a", "rollout.chunk=1,2", "rollout.size=1", "=1"])
def test_a_pin_that_cannot_be_read_is_shown_with_what_was_expected(text: str):
    with pytest.raises(ConfigError, match=r"expected role=slots or role\.option=number"):
        pins([text])


@pytest.mark.parametrize(
    ("placed", "name"),
    [
        ({"rollout": (0, 1), "learner": (0, 1)}, "collocated"),
        ({"rollout": (0, 1), "learner": (2, 3)}, "disaggregated"),
        ({"rollout": (0, 1, 2), "learner": (2, 3)}, "hybrid"),
    ],
)
def test_a_plan_has_the_name_that_people_give_it(placed: dict[str, tuple[int, ...]], name: str):
    plan = Plan(slots=tuple(SLOTS), stages={role: StageConfig(slots=slots) for role, slots in placed.items()})
    assert str(plan).startswith(f"{name} on 4 slots")


def test_a_plan_comes_back_from_its_file(tmp_path: Path):
    plan = make(SLOTS, LIMITS, pins=pins(["learner=2", "rollout.bound=3"]))
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
