# SPDX-License-Identifier: Apache-2.0
"""Free memory is never given twice and never lost; shared memory ends with its owner."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2flow.errors import TransportError
from m2flow.transport.segment import Extents, Place, Segment, available_bytes, mapped, node_id


@given(st.lists(st.integers(1, 2**34), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_extents_are_disjoint_and_all_come_back(sizes: list[int], order: random.Random):
    capacity = 2**35
    extents, held = Extents(capacity), []
    for size in sizes:
        offset = extents.take(size)
        if offset is None:
            assert size > extents.num_free_bytes or held
            continue
        assert all(offset + size <= o or o + n <= offset for o, n in held) and offset + size <= capacity
        held.append((offset, size))
        if order.random() < 0.4:
            extents.give(*held.pop(order.randrange(len(held))))
        assert extents.num_free_bytes == capacity - sum(n for _, n in held)
    order.shuffle(held)
    for offset, size in held:
        extents.give(offset, size)
    assert extents.take(capacity) == 0


def test_the_first_hole_that_fits_is_used_again():
    extents = Extents(100)
    assert [extents.take(30), extents.take(30), extents.take(30), extents.take(30)] == [0, 30, 60, None]
    extents.give(0, 30)
    assert extents.take(20) == 0


def test_another_process_sees_what_is_written_and_cannot_write():
    segment = Segment("m2flow-test", 4096)
    view = mapped(segment.place)
    segment.bytes[5] = 17
    assert view[5] == 17 and not view.flags.writeable
    segment.close()
    assert view[5] == 17


def test_a_segment_whose_owner_is_gone_is_a_clear_error():
    segment = Segment("m2flow-test", 4096)
    place = segment.place
    segment.close()
    with pytest.raises(TransportError, match="that process has ended"):
        mapped(place)


def test_a_number_that_was_given_to_another_file_is_noticed(tmp_path: Path):
    with open(tmp_path / "other", "wb") as other, pytest.raises(TransportError, match="its number now belongs to"):
        mapped(Place(os.getpid(), other.fileno(), "m2flow-test", 4096))


def test_more_memory_than_there_is_is_an_error_at_once():
    with pytest.raises(TransportError, match="shared memory to be had"):
        Segment("m2flow-test", 2**62)


def test_the_limit_of_a_control_group_counts_where_it_is_lower(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 5 kB\n")
    assert available_bytes(tmp_path) == 5120
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("4000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1500\n")
    assert available_bytes(tmp_path) == 2500
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == 5120


def test_processes_of_one_machine_name_the_same_node():
    assert node_id() == node_id() and len(node_id()) > 36


def test_memory_is_aligned_for_every_dtype():
    assert Segment("m2flow-test", 4096).bytes.ctypes.data % 4096 == 0 == np.dtype("c16").itemsize % 16
