# SPDX-License-Identifier: Apache-2.0
"""One checkpoint: a folder with ``state.json``, ``tensors.safetensors`` and a ``manifest.json`` of their checksums."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from m2flow.checkpoint import snapshots, tensor_file
from m2flow.errors import CheckpointError

FORMAT = 1
"""Version of the layout. It grows when a reader of the old one would go wrong."""

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
_CHUNK_BYTES = 1 << 24


class OtherFormat(CheckpointError):
    """A checkpoint that is intact, and for another version of m2flow."""


def write(folder: Path, step: int, *, saved: snapshots.Snapshot) -> None:
    """Fill ``folder``, which must not exist. When this returns, all of it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir()
    files = {
        STATE: _write_file(folder / STATE, [_json(saved.tree)]),
        TENSORS: _write_file(folder / TENSORS, tensor_file.chunks(saved.tensors)),
    }
    contents = {"format": FORMAT, "step": step, "files": files}
    _write_file(folder / MANIFEST, [_json({**contents, "sha256": _digest_of(contents)}, indent=2)])
    sync_folder(folder)


def read(folder: Path, step: int) -> Any:
    """The state in ``folder``, after every byte of it was checked.

    Raises:
        CheckpointError: a file is missing or damaged, the checkpoint is another step's or of a newer version.
    """
    manifest = _read_manifest(folder / MANIFEST)
    if manifest["format"] != FORMAT:
        raise OtherFormat(
            f"{folder} has format {manifest['format']}, this version of m2flow reads {FORMAT}: "
            "use the version that wrote it"
        )
    if manifest["step"] != step:
        raise CheckpointError(f"{folder} holds step {manifest['step']}: give the folder its own name back")
    for name, expected in manifest["files"].items():
        _check_file(folder / name, expected)
    try:
        saved = snapshots.Snapshot(json.loads((folder / STATE).read_bytes()), tensor_file.read(folder / TENSORS))
        return snapshots.restore(saved)
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, f"cannot be read ({error})") from error


def sync_folder(folder: Path) -> None:
    """Put the names in ``folder`` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write, put on the disk, and describe."""
    digest = hashlib.sha256()
    with open(path, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    try:
        size = path.stat().st_size
        found = _digest_of_file(path) if size == expected["bytes"] else ""
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    if size != expected["bytes"]:
        raise _damaged(path, f"has {size} bytes, expected {expected['bytes']}")
    if found != expected["sha256"]:
        raise _damaged(path, f"has the checksum {found[:12]}..., expected {expected['sha256'][:12]}...")


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise _damaged(path, f"is no JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.pop("sha256", None) != _digest_of(manifest):
        raise _damaged(path, "does not have its own checksum")
    return manifest


def _digest_of(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json(contents, sort_keys=True)).hexdigest()


def _json(value: Any, **style: Any) -> bytes:
    return (json.dumps(value, allow_nan=False, **style) + "\n").encode("ascii")


def _damaged(path: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is damaged: {path} {how}. Delete its folder, or restore it from a copy; "
        "--resume auto goes on from the newest one that is intact"
    )
