# SPDX-License-Identifier: Apache-2.0
"""What a machine has, cut into slots."""

import os

import pytest

from m2flow.errors import ConfigError
from m2flow.runtime.devices import discover, split_cores


def test_slots_have_all_cores_of_the_process_and_share_none():
    cores = os.sched_getaffinity(0)
    slots = discover(len(cores))
    assert sorted(core for slot in slots for core in slot.cores) == sorted(cores)
    assert all(slot.memory_bytes > 0 for slot in slots)
    assert discover()[0].cores == tuple(sorted(cores))


def test_groups_of_cores_are_as_equal_as_can_be():
    groups = split_cores(range(10), 4)
    assert [len(group) for group in groups] == [3, 3, 2, 2]
    assert sorted(core for group in groups for core in group) == list(range(10))


def test_more_slots_than_cores_are_refused_with_the_number_there_is():
    number = len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match=f"this machine has {number} CPU cores"):
        discover(number + 1)
