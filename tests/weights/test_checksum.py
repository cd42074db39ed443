# SPDX-License-Identifier: Apache-2.0
"""The checksum depends on every name, dtype, shape and bit, and on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m2flow.weights.checksum import PIECE_BYTES, checksum, copied

STATE = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.tensor([True])}


def test_it_does_not_depend_on_order_or_strides():
    columns = STATE["a"].t().contiguous().t()
    assert checksum(STATE) == checksum({"b": STATE["b"], "a": columns})


@pytest.mark.parametrize(
    "other",
    [
        {"a": STATE["a"], "c": STATE["b"]},
        {"a": STATE["a"].reshape(3, 2), "b": STATE["b"]},
        {"a": STATE["a"].view(torch.int32), "b": STATE["b"]},
        {"a": STATE["a"]},
    ],
    ids=["name", "shape", "dtype", "missing"],
)
def test_it_tells_states_of_equal_bytes_apart(other: dict[str, torch.Tensor]):
    assert checksum(STATE) != checksum(other)


@given(st.integers(0, 3 * PIECE_BYTES - 1), st.integers(0, 7))
def test_it_sees_each_single_bit(position: int, bit: int):
    tensor = torch.zeros(3 * PIECE_BYTES, dtype=torch.uint8)
    before = checksum({"w": tensor})
    tensor[position] = 1 << bit
    assert checksum({"w": tensor}) != before


@pytest.mark.parametrize("size", [PIECE_BYTES, 3 * PIECE_BYTES])
def test_the_first_quarter_of_each_piece_and_all_of_small_tensors_are_looked_at_when_every_is_four(size: int):
    def seen(position: int) -> bool:
        tensor = torch.zeros(size, dtype=torch.uint8)
        before = checksum({"w": tensor}, every=4)
        tensor[position] = 1
        return checksum({"w": tensor}, every=4) != before

    quarters = [seen(begin + PIECE_BYTES // 4 - side) for begin in range(0, size, PIECE_BYTES) for side in (1, 0)]
    assert quarters == [True, size == PIECE_BYTES] * (size // PIECE_BYTES)


@pytest.mark.parametrize("every", [1, 4])
def test_copying_copies_every_byte_and_gives_the_same_number(every: int):
    state = STATE | {"c": torch.randn(3 * PIECE_BYTES // 4 + 5)}
    targets = {name: np.zeros(t.numel() * t.element_size(), np.uint8) for name, t in state.items()}
    assert copied(state, targets, every=every) == checksum(state, every)
    for name, tensor in state.items():
        assert targets[name].tobytes() == tensor.numpy().tobytes()
