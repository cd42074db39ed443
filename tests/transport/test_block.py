# SPDX-License-Identifier: Apache-2.0
"""Items survive being taken apart and put together: every dtype, shape and nesting."""

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from m2flow.errors import TransportError
from m2flow.transport.block import ALIGNMENT, Packed, aligned, erase, offsets, unpack

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.integer_dtypes(endianness=">"),
    hnp.floating_dtypes(endianness="="),
    hnp.floating_dtypes(endianness=">"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))


@dataclass
class Node:
    """Something nested."""

    name: str
    arrays: list[np.ndarray] = field(default_factory=list)
    children: "list[Node]" = field(default_factory=list)


def there_and_back(item: Any) -> Any:
    packed = Packed(item)
    block = np.empty(packed.size, np.uint8)
    packed.write(block, 7)
    return unpack(block, 7)


def assert_same(one: np.ndarray, other: np.ndarray) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@given(ARRAYS)
def test_an_array_of_any_dtype_and_shape_arrives_bit_for_bit_and_read_only(array: np.ndarray):
    found = there_and_back(array)
    assert_same(array, found)
    assert not found.flags.writeable


@given(ARRAYS, st.data())
def test_a_view_with_strides_arrives_as_the_values_it_shows(array: np.ndarray, data: st.DataObject):
    view = array[tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in array.shape)].T
    assert_same(view, there_and_back(view))


@given(st.recursive(st.builds(Node, st.text(), st.lists(ARRAYS, max_size=3)),
                    lambda nodes: st.builds(Node, st.text(), st.lists(ARRAYS, max_size=2), st.lists(nodes, max_size=3)),
                    max_leaves=5))  # fmt: skip
def test_nested_dataclasses_arrive_whole(node: Node):
    pairs = [(node, there_and_back(node))]
    while pairs:
        one, other = pairs.pop()
        assert one.name == other.name and len(one.children) == len(other.children)
        for a, b in zip(one.arrays, other.arrays, strict=True):
            assert_same(a, b)
        pairs += zip(one.children, other.children, strict=True)


def test_one_array_in_two_places_is_sent_once_and_stays_one():
    array = np.arange(10_000)
    first, second = there_and_back([array, array])
    assert first is second
    assert Packed([array, array]).size < 1.1 * array.nbytes


def test_fields_and_objects_of_an_array_arrive():
    records = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", ">i2"), ("b", "f8")])
    assert_same(records, there_and_back(records))
    assert there_and_back(np.array([1, "two", None], object)).tolist() == [1, "two", None]


def test_no_bytes_of_an_array_are_in_the_pickle_stream():
    item = {"array": np.full(5000, 0x7A7B, np.uint16), "tensor": torch.full((5000,), 1.5, dtype=torch.bfloat16)}
    assert len(Packed(item)._parts[0]) < 600


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.arange(12.0).reshape(3, 4).t()[::2],
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.arange(4, dtype=torch.float32).to(torch.float8_e4m3fn),
        torch.tensor([float("nan"), -0.0]).requires_grad_(),
        torch.arange(6.0).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_tensors_of_every_kind_arrive(tensor: torch.Tensor):
    found = there_and_back(tensor)
    assert (found.dtype, found.shape, found.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert type(found) is type(tensor)
    dense = [(t.to_dense() if t.is_sparse else t.detach().resolve_conj()).reshape(-1) for t in (tensor, found)]
    assert torch.equal(dense[0].view(torch.uint8), dense[1].view(torch.uint8))


def test_a_tensor_is_a_copy_that_can_be_written():
    packed = Packed(torch.zeros(100))
    block = np.zeros(packed.size, np.uint8)
    packed.write(block, 1)
    before = block.copy()
    unpack(block, 1).add_(1)
    assert np.array_equal(block, before)


def test_arrays_are_views_of_the_block_at_aligned_places():
    packed = Packed([np.ones(3, np.uint8), np.ones(5, np.float64)])
    block = np.zeros(packed.size + ALIGNMENT, np.uint8)
    block = block[-block.ctypes.data % ALIGNMENT :][: packed.size]
    packed.write(block, 1)
    for array in unpack(block, 1):
        assert np.shares_memory(array, block) and not array.ctypes.data % ALIGNMENT


def test_an_item_that_cannot_be_pickled_is_named():
    with pytest.raises(TransportError, match="an item of type dict cannot be sent"):
        Packed({"lock": threading.Lock()})


def test_a_block_written_again_or_erased_is_not_taken_for_the_old_item():
    packed = Packed([1, 2])
    block = np.zeros(packed.size, np.uint8)
    packed.write(block, 8)
    with pytest.raises(TransportError, match=r"item 7 was freed .* holds 8"):
        unpack(block, 7)
    erase(block)
    with pytest.raises(TransportError, match="item 8 was freed"):
        unpack(block, 8)


@given(st.lists(st.integers(0, 2**45), max_size=20))
def test_parts_of_any_size_lie_one_after_another(sizes: list[int]):
    begins, total = offsets(sizes)
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    assert all(begin % ALIGNMENT == 0 for begin in begins)
    assert all(end <= begin < end + ALIGNMENT for end, begin in zip(ends, begins[1:], strict=False))
    assert (begins or [total])[0] >= 8 * (2 + len(sizes)) and aligned((ends or [total])[-1]) == total
