# SPDX-License-Identifier: Apache-2.0
"""An item as one block of bytes: a table, a pickle stream without any array in it, and the bytes of the arrays.

All parts begin at multiples of ``ALIGNMENT``, so that arrays and tensors can be used where they lie. The first word is
the number of the item: a block that was freed and written again is told from the one that was meant.

Pickle runs code of whoever wrote the stream. Blocks are therefore read from two places only: memory that a process of
the same user made, and connections on which both ends proved that they have the run's key.
"""

import copyreg
import io
import pickle
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from m2flow.errors import TransportError

ALIGNMENT = 64
_WORD = 8


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ``ALIGNMENT``."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of these sizes begin in a block, and the size of the block, in bytes."""
    place, found = aligned(_WORD * (2 + len(sizes))), []
    for size in sizes:
        found.append(place)
        place += aligned(size)
    return found, place


class Packed:
    """An item that was taken apart; the arrays are still where they were.

    Arrays that are not contiguous are gathered first. Tensors of the CPU are treated as arrays, those of other devices
    are pickled as PyTorch does it.

    Raises:
        TransportError: the item cannot be pickled.
    """

    def __init__(self, item: Any) -> None:
        stream, buffers = io.BytesIO(), []
        pickler = pickle.Pickler(stream, 5, buffer_callback=buffers.append)
        pickler.dispatch_table = copyreg.dispatch_table | {np.ndarray: _reduce_array} | _reduce_tensors()
        try:
            pickler.dump(item)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TransportError(
                f"an item of type {type(item).__name__} cannot be sent to another process ({error}): "
                "send plain data, such as dataclasses, arrays and numbers, of classes defined at the top of a module"
            ) from error
        self._parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
        self._sizes = [len(part) for part in self._parts]
        self._offsets, self.size = offsets(self._sizes)

    def write(self, target: np.ndarray, number: int) -> None:
        """Copy the item into ``size`` bytes; the number last, so that a block half written never counts as the item."""
        table = struct.pack(f"<{len(self._sizes) + 1}Q", len(self._sizes), *self._sizes)
        view = target.data
        view[_WORD : _WORD + len(table)] = table
        for part, begin, size in zip(self._parts, self._offsets, self._sizes, strict=True):
            _copy(part, target[begin : begin + size])
        view[:_WORD] = struct.pack("<Q", number)


def _copy(part: memoryview, target: np.ndarray) -> None:
    """Copy; other threads may run meanwhile, where that takes long."""
    if len(part) < 1 << 16:
        target.data[:] = part
    else:
        np.copyto(target, np.frombuffer(part, np.uint8))


def erase(block: np.ndarray) -> None:
    """Take the number away: who reads the block from now on is told that its item is gone."""
    block[:_WORD] = 0


def unpack(block: Any, number: int) -> Any:
    """The item of a block; its arrays are read-only views that keep ``block`` alive, its tensors are copies.

    PyTorch has no read-only tensors, and a write into a view would either kill the process or reach other readers.

    Raises:
        TransportError: the block holds another item by now.
    """
    view = memoryview(block).toreadonly()
    found, num_parts = struct.unpack_from("<2Q", view)
    if found != number:
        raise TransportError(f"item {number} was freed while somebody still meant to read it; its place holds {found}")
    sizes = struct.unpack_from(f"<{num_parts}Q", view, 2 * _WORD)
    begins, _ = offsets(sizes)
    parts = [view[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
    return pickle.loads(parts[0], buffers=parts[1:])


def _reduce_array(array: np.ndarray) -> Any:
    if array.dtype.hasobject or not array.dtype.itemsize:
        return array.__reduce_ex__(5)
    order = "C" if array.flags.c_contiguous or not array.flags.f_contiguous else "F"
    flat = np.ascontiguousarray(array.reshape(-1, order=order)).view(np.uint8)
    return _array, (pickle.PickleBuffer(flat.data), (array.dtype, array.shape, order))


def _array(buffer: Any, form: tuple[np.dtype, tuple[int, ...], Any]) -> np.ndarray:
    dtype, shape, order = form
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


def _reduce_tensors() -> dict[type, Any]:
    """The reducer of tensors, where PyTorch is loaded; this module does not load it."""
    torch = sys.modules.get("torch")
    return {torch.Tensor: _reduce_tensor} if torch else {}


def _reduce_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(flat.data), (tensor.dtype, tuple(tensor.shape), tensor.requires_grad))


def _tensor(buffer: Any, form: tuple[Any, tuple[int, ...], bool]) -> Any:
    import torch

    dtype, shape, requires_grad = form
    tensor = torch.empty(shape, dtype=dtype)
    if len(buffer):
        np.copyto(tensor.reshape(-1).view(torch.uint8).numpy(), np.frombuffer(buffer, np.uint8))
    return tensor.requires_grad_(requires_grad)
