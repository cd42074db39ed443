# SPDX-License-Identifier: Apache-2.0
"""A state as JSON and tensors, and back, without a change of type or bit.

What a state may hold, and what comes back:

- ``None``, ``bool``, ``str``, ``int`` of any size, ``float`` (NaN and infinities too): the same;
- ``list``, ``tuple``, and mappings with keys of type ``str``: the same, every mapping as a ``dict`` in its order;
- ``torch.Tensor``: on the CPU, dense, without gradient; ``numpy.ndarray`` and NumPy scalars of numbers: the same.
  Where two leaves are one tensor (tied weights), it is stored once and comes back as one.

Anything else is refused with the path that leads to it: bytes, sets, dates, objects, subclasses of the above (a named
tuple, an enumeration), sparse or quantized tensors, tensors without data, arrays of text or objects.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from m2flow.checkpoint.tensor_file import DTYPES
from m2flow.errors import CheckpointError

_TORCH_DTYPES = frozenset(DTYPES.values())
ARRAY_DTYPES = [
    torch.empty(0, dtype=dtype).numpy().dtype for name, dtype in DTYPES.items() if not name.startswith(("F8", "BF"))
]
_TENSOR_CLASSES = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class Snapshot:
    """A state as it was at one moment. Nothing in it shares memory with the state that it was taken of."""

    tree: Any
    """JSON. What JSON does not know is an object with one key that begins with a dollar sign."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Contiguous, in host memory, by the path of the leaf (``/roles/learner/policy/lm_head.weight``)."""


def snapshot(state: Mapping[str, Any]) -> Snapshot:
    """Copy ``state``.

    Raises:
        CheckpointError: it holds something that cannot be saved; the message gives the path.
    """
    encoder = _Encoder()
    return Snapshot(encoder.encode(state, ""), encoder.tensors)


def restore(saved: Snapshot) -> Any:
    """The state that ``saved`` was taken of.

    Raises:
        CheckpointError: it has parts that this version does not know.
    """
    return _decode(saved.tree, saved.tensors)


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._stored: dict[tuple[Any, ...], str] = {}
        self._by_class: dict[type, Callable[[Any, str], Any]] = {
            type(None): _as_is,
            bool: _as_is,
            str: _as_is,
            int: _encode_int,
            float: _encode_float,
            list: self._list,
            tuple: lambda value, path: {"$tuple": self._list(value, path)},
            np.ndarray: lambda value, path: {"$array": self._array(value, path)},
            **dict.fromkeys(_TENSOR_CLASSES, lambda value, path: {"$tensor": self._tensor(value, path)}),
        }

    def encode(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, np.generic):
            return {"$scalar": self._array(np.asarray(value), path)}
        encode = self._by_class.get(type(value))
        if encode is None:
            raise _refusal(
                path,
                f"a {type(value).__module__}.{type(value).__qualname__}",
                advice="give numbers, text, lists, tuples, dicts, tensors or arrays",
            )
        return encode(value, path)

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        for key in value:
            if type(key) is not str:
                raise _refusal(path, f"a mapping with the key {key!r} ({type(key).__name__})", advice="let keys be str")
        encoded = {key: self.encode(item, f"{path}/{_escape(key)}") for key, item in value.items()}
        # A key that looks like one of our own marks: store the mapping as pairs.
        return {"$dict": list(encoded.items())} if any(key.startswith("$") for key in encoded) else encoded

    def _list(self, value: list[Any] | tuple[Any, ...], path: str) -> list[Any]:
        return [self.encode(item, f"{path}/{index}") for index, item in enumerate(value)]

    def _tensor(self, value: Tensor, path: str) -> str:
        if value.layout != torch.strided or value.dtype not in _TORCH_DTYPES or value.is_meta:
            what = f"a tensor of layout {value.layout}, type {value.dtype}, device {value.device}"
            raise _refusal(path, what, advice="give a dense one that has data, of a type that safetensors knows")
        value = value.detach()
        key = (
            value.data_ptr(),
            value.device,
            value.dtype,
            value.shape,
            value.stride(),
            value.is_conj(),
            value.is_neg(),
        )
        if value.numel() and key in self._stored:
            return self._stored[key]
        self._stored[key] = path
        copied = value.to("cpu", copy=True, memory_format=torch.contiguous_format)
        self.tensors[path] = copied.resolve_conj().resolve_neg()
        return path

    def _array(self, value: np.ndarray, path: str) -> str:
        key = (value.ctypes.data, value.dtype, value.shape, value.strides)
        if value.size and value.ndim and key in self._stored:
            return self._stored[key]
        native = value.dtype.newbyteorder("=")
        if native not in ARRAY_DTYPES:
            raise _refusal(
                path, f"an array of {value.dtype}", advice=f"give one of {', '.join(map(str, ARRAY_DTYPES))}"
            )
        self._stored[key] = path
        self.tensors[path] = torch.from_numpy(np.array(value, dtype=native, order="C", copy=True))
        return path


def _as_is(value: Any, path: str) -> Any:
    return value


def _encode_int(value: int, path: str) -> Any:
    # As hexadecimal beyond 64 bits: other readers of JSON would round it, and Python bounds the length of decimals.
    return value if value.bit_length() <= 63 else {"$int": hex(value)}


def _encode_float(value: float, path: str) -> Any:
    # Python's JSON writes the shortest decimal that reads back as the same number, but has no NaN by the standard.
    return value if math.isfinite(value) else {"$float": repr(value)}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _refusal(path: str, got: str, *, advice: str) -> CheckpointError:
    return CheckpointError(f"the state at {path or '/'} is {got}, which a checkpoint cannot hold: {advice}")


def _decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    mark = next(iter(node), "")
    if not mark.startswith("$"):
        return {key: _decode(item, tensors) for key, item in node.items()}
    if mark not in _DECODERS:
        raise CheckpointError(
            f"the checkpoint has a part of kind '{mark[1:]}', which this version does not know: update it"
        )
    return _DECODERS[mark](node[mark], tensors)


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$int": lambda node, tensors: int(node, 16),
    "$float": lambda node, tensors: float(node),
    "$tuple": lambda node, tensors: tuple(_decode(node, tensors)),
    "$dict": lambda node, tensors: {key: _decode(item, tensors) for key, item in node},
    "$tensor": lambda node, tensors: tensors[node],
    "$array": lambda node, tensors: tensors[node].numpy(),
    "$scalar": lambda node, tensors: tensors[node].numpy()[()],
}
