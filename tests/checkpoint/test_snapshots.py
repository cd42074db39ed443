# SPDX-License-Identifier: Apache-2.0
import enum
import json
import math
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from m2flow.checkpoint import snapshots
from m2flow.checkpoint.tensor_file import DTYPES
from m2flow.errors import CheckpointError


def _round_trip(value: Any) -> Any:
    saved = snapshots.snapshot({"value": value})
    through_json = json.loads(json.dumps(saved.tree, allow_nan=False))
    return snapshots.restore(snapshots.Snapshot(through_json, saved.tensors))["value"]


SCALARS = st.one_of(st.none(), st.booleans(), st.text(), st.integers(), st.floats())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(
            st.one_of(st.text(), st.sampled_from(["$int", "$tuple", "$dict", "a/b", "~1"])), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_values_come_back_with_their_types_and_every_digit(value: Any):
    # The text of a value tells a tuple from a list, True from 1, -0.0 from 0.0, and gives every digit of a float.
    assert repr(_round_trip(value)) == repr(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1, 1.7976931348623157e308])
def test_floats_keep_every_digit(value: float):
    assert repr(_round_trip(value)) == repr(value)


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63), 2**128 + 1, -(10**5000)], ids=hex)
def test_whole_numbers_have_no_bound(value: int):
    assert _round_trip(value) == value


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (3, 5)], ids=str)
def test_tensors_of_every_type_and_shape_come_back(dtype: torch.dtype, shape: tuple[int, ...]):
    value = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    back = _round_trip(value)
    assert back.dtype == dtype and back.shape == value.shape
    assert torch.equal(back.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", [d.str for d in snapshots.ARRAY_DTYPES])
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)], ids=str)
def test_arrays_of_every_type_and_shape_come_back(dtype: str, shape: tuple[int, ...]):
    value = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    back = _round_trip(value)
    assert type(back) is np.ndarray and back.dtype == value.dtype and np.array_equal(back, value)
    assert back.shape == value.shape and back.flags.writeable


def test_numpy_scalars_stay_numpy_scalars():
    for value in (np.float32(0.1), np.int64(-7), np.bool_(True), np.float64(math.pi)):
        back = _round_trip(value)
        assert type(back) is type(value) and back == value


def test_views_are_saved_as_what_they_show():
    base = torch.arange(12.0).reshape(3, 4)
    complexes = torch.tensor([1 + 2j])
    for value in (base.t(), base[:, 1], base[::2], base[0].expand(5, 4), complexes.conj(), complexes.conj().imag):
        back = _round_trip(value)
        assert back.is_contiguous() and torch.equal(back, value)
    reversed_array = np.arange(5, dtype=">i2")[::-1]
    assert _round_trip(reversed_array).tolist() == [4, 3, 2, 1, 0]


def test_a_nan_keeps_its_bits():
    bits = torch.tensor([0x7FC12345, -0x3FEDCC], dtype=torch.int32)
    assert torch.equal(_round_trip(bits.view(torch.float32)).view(torch.int32), bits)


def test_tied_weights_are_stored_once_and_come_back_tied():
    weight = torch.nn.Parameter(torch.randn(3, 2))
    saved = snapshots.snapshot(
        {"embed": weight, "head": weight, "transposed": weight.t(), "copy": weight.detach().clone()}
    )
    assert sorted(saved.tensors) == ["/copy", "/embed", "/transposed"]
    back = snapshots.restore(saved)
    assert back["embed"] is back["head"] and torch.equal(back["transposed"], weight.t())
    assert type(back["embed"]) is torch.Tensor and not back["embed"].requires_grad


def test_a_tensor_and_its_conjugate_are_two():
    value = torch.tensor([1 + 2j])
    back = snapshots.restore(snapshots.snapshot({"a": value, "b": value.conj()}))
    assert back["a"].item() == 1 + 2j and back["b"].item() == 1 - 2j


def test_a_snapshot_does_not_change_with_what_it_was_taken_of():
    state: dict[str, Any] = {"tensor": torch.zeros(3), "array": np.zeros(3), "list": [0], "dict": {"a": 0}}
    saved = snapshots.snapshot(state)
    state["tensor"] += 1
    state["array"] += 1
    state["list"].append(1)
    state["dict"]["a"] = 1
    back = snapshots.restore(saved)
    assert back["tensor"].sum() == 0 and back["array"].sum() == 0 and back["list"] == [0] and back["dict"] == {"a": 0}


def test_mappings_of_other_kinds_come_back_as_dicts_in_their_order():
    back = _round_trip(OrderedDict(b=1, a=2))
    assert type(back) is dict and list(back.items()) == [("b", 1), ("a", 2)]


class _Colour(enum.IntEnum):
    RED = 1


_Point = namedtuple("_Point", "x y")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1: "a"}, "key 1 (int)"),
        (b"bytes", "builtins.bytes"),
        ({1, 2}, "builtins.set"),
        (1j, "builtins.complex"),
        (_Colour.RED, "_Colour"),
        (_Point(1, 2), "_Point"),
        (object(), "builtins.object"),
        (print, "builtin_function_or_method"),
        (np.array(["text"]), "array of <U4"),
        (np.array([object()]), "array of object"),
        (np.zeros(2, np.complex128), "array of complex128"),
        (np.zeros(2, [("a", "i4")]), "array of"),
        (torch.zeros(2, dtype=torch.complex128), "torch.complex128"),
        (torch.zeros(2).to_sparse(), "torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "device meta"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_path(value: Any, named: str):
    with pytest.raises(CheckpointError) as error:
        snapshots.snapshot({"roles": {"a/b": [0, value]}})
    assert "/roles/a~1b/1 " in str(error.value) and named in str(error.value)


def test_a_part_of_a_newer_version_is_refused():
    with pytest.raises(CheckpointError, match="kind 'deque', which this version does not know"):
        snapshots.restore(snapshots.Snapshot({"a": {"$deque": []}}))
