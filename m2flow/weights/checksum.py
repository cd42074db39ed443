# SPDX-License-Identifier: Apache-2.0
"""One number for the names, dtypes, shapes and bits of a set of tensors, made while they are copied.

XXH3 of the tensors in the order of their names. Hashing a piece that was just copied costs little, since it is still
in the processor's cache; reading all memory once more would cost a good part of a copy. With ``every=16`` the first
16th of each piece of 256 KiB is hashed, and all of tensors that are no larger: enough to tell one version from another
and to see tensors that are missing, mixed up or half written, though not each single bit.
"""

from collections.abc import Mapping

import numpy as np
import torch
import xxhash
from jaxtyping import Shaped, UInt8

from m2flow.weights.base import State

PIECE_BYTES = 256 * 2**10


def raw(tensor: Shaped[torch.Tensor, "..."]) -> np.ndarray:
    """The bytes of a tensor: a view where it is contiguous on the CPU, a copy where not."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()


def checksum(state: State, every: int = 1) -> int:
    """The number, from 0 to 2**64 - 1; it does not depend on where the tensors are or lie."""
    return copied(state, {}, every=every)


def copied(state: State, targets: Mapping[str, UInt8[np.ndarray, " bytes"]], *, every: int = 1) -> int:
    """Copy the bytes of each tensor into the target of its name, where there is one; returns the checksum."""
    digest = xxhash.xxh3_64()
    for name in sorted(state):
        tensor = state[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        source = raw(tensor)
        _copy_pieces(source, targets.get(name, source), digest=digest, every=every)
    return digest.intdigest()


def _copy_pieces(source: np.ndarray, target: np.ndarray, *, digest: "xxhash.xxh3_64", every: int) -> None:
    num_hashed = PIECE_BYTES // every if len(source) > PIECE_BYTES else PIECE_BYTES
    for begin in range(0, len(source), PIECE_BYTES):
        if target is not source:
            np.copyto(target[begin : begin + PIECE_BYTES], source[begin : begin + PIECE_BYTES])
        digest.update(target[begin : begin + num_hashed].data)
