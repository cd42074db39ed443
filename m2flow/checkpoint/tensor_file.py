# SPDX-License-Identifier: Apache-2.0
"""Tensors in one file of the safetensors format: eight bytes of header length, a JSON header, the raw data.

The file is written from memory chunk by chunk, so that it can be hashed on the way and a full disk is an ``OSError``,
and read into tensors of their own, so that none of them keeps the file open. Nothing in it is ever executed.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""What the format can hold, by the name it has there."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHUNK_BYTES = 1 << 24


def chunks(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The file's contents, piece by piece. ``tensors`` are on the CPU and contiguous, each of one of ``DTYPES``."""
    # The format wants every tensor aligned to its item size: the widest first.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in ordered:
        raw = _bytes_of(tensor)
        yield from (raw[at : at + _CHUNK_BYTES] for at in range(0, len(raw), _CHUNK_BYTES))


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file whose checksum was found right.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not of this format (``KeyError`` for a type of number that is unknown here).
    """
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        start = file.tell()
        tensors = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            tensor = torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            if end - begin != tensor.nbytes or file.readinto(_bytes_of(tensor)) != tensor.nbytes:
                raise ValueError(f"tensor {name} has not the {tensor.nbytes} bytes of its shape")
            tensors[name] = tensor
    return tensors


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    # NumPy has no bfloat16; as bytes every type is the same to it.
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(bytearray())
