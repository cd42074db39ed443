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


def test_one_piece_of_four_and_the_last_are_looked_at_when_every_is_four():
    def seen(piece: int) -> bool:
        tensor = torch.zeros(7 * PIECE_BYTES, dtype=torch.uint8)
        before = checksum({"w": tensor}, every=4)
        tensor[piece * PIECE_BYTES] = 1
        return checksum({"w": tensor}, every=4) != before

    assert [seen(piece) for piece in range(7)] == [True, False, False, False, True, False, True]


@pytest.mark.parametrize("every", [1, 4])
def test_copying_copies_every_byte_and_gives_the_same_number(every: int):
    state = STATE | {"c": torch.randn(3 * PIECE_BYTES // 4 + 5)}
    targets = {name: np.zeros(t.numel() * t.element_size(), np.uint8) for name, t in state.items()}
    assert copied(state, targets, every=every) == checksum(state, every)
    for name, tensor in state.items():
        assert targets[name].tobytes() == tensor.numpy().tobytes()
