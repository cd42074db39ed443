# SPDX-License-Identifier: Apache-2.0
"""Only what changed, bit for bit: after a small step most bf16 weights are the same numbers as before.

For each tensor the gaps between changed positions, in the smallest integers that hold them, and the new bits there.
A delta is an item like any other: arrays that ``Arena.write`` and ``Reader.read`` move.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Shaped

from m2flow.errors import WeightsError
from m2flow.weights.base import State
from m2flow.weights.checksum import checksum

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GAPS = (np.uint8, np.uint16, np.uint32)


@dataclass(frozen=True)
class Changes:
    """Of one tensor."""

    gaps: np.ndarray
    """Between the flat positions of changed elements; the first counts from 0."""
    bits: np.ndarray
    """The elements' new bits, as integers."""


@dataclass(frozen=True)
class Delta:
    """From one version to another."""

    base: int
    version: int
    checksum: int
    """Of all tensors of the new version, every bit of them."""
    changes: dict[str, Changes]

    @property
    def num_bytes(self) -> int:
        """What moves."""
        return sum(c.gaps.nbytes + c.bits.nbytes for c in self.changes.values())


def difference(old: State, new: State, *, base: int, version: int, max_fraction: float = 0.5) -> Delta | None:
    """What turns ``old`` into ``new``; None where that is more than ``max_fraction`` of the bytes of ``new``.

    Raises:
        WeightsError: the tensors do not have the same names, dtypes and shapes.
    """
    _require_same_form(old, new)
    room = max_fraction * sum(t.numel() * t.element_size() for t in new.values())
    changes: dict[str, Changes] = {}
    for name, tensor in new.items():
        found = _changes(_flat(old[name]), _flat(tensor))
        room -= found.gaps.nbytes + found.bits.nbytes
        if room < 0:
            return None
        changes[name] = found
    return Delta(base, version, checksum(new), changes)


def _changes(old: Shaped[torch.Tensor, " n"], new: Shaped[torch.Tensor, " n"]) -> Changes:
    positions = torch.nonzero(old != new).reshape(-1)
    gaps = np.diff(positions.numpy(), prepend=0)
    kind = next((k for k in _GAPS if gaps.max(initial=0) <= np.iinfo(k).max), np.int64)
    return Changes(gaps.astype(kind), new[positions].numpy())


def apply(delta: Delta, state: State, *, version: int) -> None:
    """Bring ``state``, which holds ``version``, to the delta's version, in place.

    Raises:
        WeightsError: the delta starts from another version, or the result is not what was sent; then the tensors are
            not to be used, and all weights must be received.
    """
    if version != delta.base:
        raise WeightsError(
            f"a delta from version {delta.base} cannot be applied to version {version}: receive all weights"
        )
    if state.keys() != delta.changes.keys():
        raise WeightsError(f"the delta has tensors {sorted(delta.changes)[:5]}..., these are {sorted(state)[:5]}...")
    for name, tensor in state.items():
        changes = delta.changes[name]
        positions = torch.from_numpy(np.cumsum(changes.gaps, dtype=np.int64))
        if not tensor.is_contiguous():
            raise WeightsError(f"'{name}' is not contiguous and cannot be changed in place: receive all weights")
        flat = _flat(tensor)
        if len(positions) and int(positions[-1]) >= len(flat):
            raise WeightsError(f"the delta of '{name}' reaches beyond its {len(flat)} elements: receive all weights")
        flat[positions] = torch.from_numpy(np.array(changes.bits))
    if (found := checksum(state)) != delta.checksum:
        raise WeightsError(
            f"after the delta from version {delta.base} the checksum is {found} and not {delta.checksum}: the "
            "weights were not those of that version; receive all weights"
        )


def _flat(tensor: Shaped[torch.Tensor, "..."]) -> Shaped[torch.Tensor, " n"]:
    """The elements as integers of their bits (a NaN equals itself, and 0 is not -0)."""
    flat = tensor.detach().reshape(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(_BITS[_width(flat)])


def _width(flat: Shaped[torch.Tensor, " n"]) -> int:
    return flat.element_size() // (2 if flat.is_complex() else 1)


def _require_same_form(old: State, new: State) -> None:
    forms = [{name: (t.dtype, tuple(t.shape)) for name, t in state.items()} for state in (old, new)]
    if forms[0] != forms[1]:
        names = sorted(n for n in {*forms[0], *forms[1]} if forms[0].get(n) != forms[1].get(n))
        raise WeightsError(f"tensors of the two versions differ in name, dtype or shape: {names[:5]}; send all weights")
