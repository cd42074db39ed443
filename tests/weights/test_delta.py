# SPDX-License-Identifier: Apache-2.0
"""A delta turns one version into the next bit for bit, or says that it cannot."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from m2flow.errors import WeightsError
from m2flow.weights.checksum import raw
from m2flow.weights.delta import apply, difference

KINDS = [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64]


def random_bits(kind: torch.dtype, shape: tuple[int, ...], *, rng: np.random.Generator) -> torch.Tensor:
    """Any bits at all: NaNs with payloads, infinities and both zeros too."""
    width = torch.empty(0, dtype=kind).element_size()
    data = rng.integers(0, 2 if kind == torch.bool else 256, (int(np.prod(shape)) * width,)).astype(np.uint8)
    return torch.from_numpy(data).view(kind).reshape(shape) if data.size else torch.empty(shape, dtype=kind)


def bits(tensor: torch.Tensor) -> bytes:
    return raw(tensor).tobytes()


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    st.lists(st.integers(0, 6), max_size=3).map(tuple),
    st.floats(0, 1),
    st.integers(0, 2**32),
)
def test_the_new_bits_are_there_for_every_dtype_shape_and_share(kinds, shape, share, seed):
    rng = np.random.default_rng(seed)
    old = {f"{i}": random_bits(kind, shape, rng=rng) for i, kind in enumerate(kinds)}
    new = {}
    for name, tensor in old.items():
        changed = torch.from_numpy(np.asarray(rng.random(shape) < share))
        new[name] = torch.where(changed, random_bits(tensor.dtype, shape, rng=rng), tensor) if tensor.dtype not in (
            torch.float8_e4m3fn, torch.complex64) else random_bits(tensor.dtype, shape, rng=rng)  # fmt: skip
    delta = difference(old, new, base=3, version=4, max_fraction=10)
    assert delta is not None
    held = {name: tensor.clone() for name, tensor in old.items()}
    apply(delta, held, version=3)
    assert all(bits(held[name]) == bits(new[name]) for name in new)


def test_only_what_changed_moves():
    old = {"w": torch.zeros(100_000, dtype=torch.bfloat16), "same": torch.ones(50)}
    new = {"w": old["w"].clone(), "same": old["same"]}
    new["w"][torch.arange(7, 100_000, 200)] = 1.0
    delta = difference(old, new, base=0, version=1)
    assert delta is not None
    assert delta.num_bytes == 500 * (1 + 2) and not len(delta.changes["same"].bits)


@pytest.mark.parametrize(("gap", "kind"), [(255, np.uint8), (256, np.uint16), (65_536, np.uint32)])
def test_gaps_take_the_smallest_integers_that_hold_them(gap: int, kind: type):
    old = {"w": torch.zeros(gap + 1)}
    delta = difference(old, {"w": torch.zeros(gap + 1).index_fill(0, torch.tensor([gap]), 1.0)}, base=0, version=1)
    assert delta is not None and delta.changes["w"].gaps.dtype == kind


def test_zero_and_minus_zero_differ_and_a_nan_equals_itself():
    old = {"w": torch.tensor([0.0, float("nan"), 1.0] + [2.0] * 20)}
    new = {"w": torch.tensor([-0.0, float("nan"), 1.0] + [2.0] * 20)}
    delta = difference(old, new, base=0, version=1)
    assert delta is not None and delta.changes["w"].gaps.tolist() == [0]


def test_when_most_has_changed_all_is_to_be_sent():
    old, new = {"w": torch.zeros(100)}, {"w": torch.ones(100)}
    assert difference(old, new, base=0, version=1) is None
    assert difference(old, new, base=0, version=1, max_fraction=2) is not None


def make_delta():
    old = {"w": torch.zeros(100)}
    delta = difference(old, {"w": torch.zeros(100).index_fill(0, torch.tensor([4]), 1.0)}, base=0, version=1)
    assert delta is not None
    return old, delta


def test_each_way_to_apply_a_delta_wrongly_is_an_error():
    old, delta = make_delta()
    wrong = [
        (delta, old, 1, "from version 0 cannot be applied to version 1"),
        (delta, {"v": old["w"]}, 0, "the delta has tensors"),
        (delta, {"w": torch.zeros(3)}, 0, "reaches beyond its 3 elements"),
        (delta, {"w": torch.zeros(100).index_fill(0, torch.tensor([9]), 1.0)}, 0, "were not those of that version"),
        (delta, {"w": torch.zeros(10, 10).t()}, 0, "is not contiguous"),
        (replace(delta, checksum=1), {"w": torch.zeros(100)}, 0, "and not 1"),
    ]
    for given_delta, state, version, message in wrong:
        with pytest.raises(WeightsError, match=message):
            apply(given_delta, state, version=version)


def test_versions_of_other_forms_have_no_difference():
    with pytest.raises(WeightsError, match=r"differ in name, dtype or shape: \['a', 'b'\]"):
        difference({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, base=0, version=1)
