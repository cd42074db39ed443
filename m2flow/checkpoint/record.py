# SPDX-License-Identifier: Apache-2.0
"""One checkpoint: a folder with ``state.json``, ``tensors.safetensors`` and a ``manifest.json`` of their checksums.

Several processes may each add a part, ``NAME.json`` and ``NAME.safetensors``; the manifest, which is written last, and
by one process, names them all.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2flow.checkpoint import snapshots, tensor_file
from m2flow.errors import CheckpointError

FORMAT = 1
"""Version of the layout. It grows when a reader of the old one would go wrong."""

MANIFEST, STATE, TENSORS = "manifest.json", "state.json", "tensors.safetensors"
Files = dict[str, dict[str, Any]]
"""Size and checksum of files, by name."""

_CHUNK_BYTES = 1 << 24


class OtherFormat(CheckpointError):
    """A checkpoint that is intact, and for another version of m2flow."""


@dataclass(frozen=True)
class Part:
    """A part that lies in the folder of a checkpoint; small, and plain enough to be sent to another process."""

    name: str
    files: Files


def write_part(folder: Path, name: str, *, state: Mapping[str, Any]) -> Part:
    """Add ``state`` to ``folder``, of which another process makes a checkpoint (``Store.begin``, ``Store.finish``).

    When this returns, all of it is on the disk.

    Raises:
        CheckpointError: the state holds something that cannot be saved.
        OSError: it cannot be written, or there is such a part already.
    """
    files = _write_state(folder, (f"{name}.json", f"{name}.safetensors"), saved=snapshots.snapshot(state))
    sync_folder(folder)
    return Part(name, files)


def write(folder: Path, step: int, *, saved: snapshots.Snapshot, parts: Sequence[Part] = ()) -> None:
    """Complete ``folder``, which holds ``parts`` and nothing else. When this returns, all of it is on the disk.

    Raises:
        OSError: it cannot be written.
    """
    files = _write_state(folder, (STATE, TENSORS), saved=saved)
    for part in parts:
        files |= part.files
    contents = {"format": FORMAT, "step": step, "files": files, "parts": [part.name for part in parts]}
    _write_file(folder / MANIFEST, [_json({**contents, "sha256": _digest_of(contents)}, indent=2)])
    sync_folder(folder)


def read(folder: Path, step: int) -> Any:
    """The state in ``folder``, after every byte of it was checked.

    Raises:
        CheckpointError: a file is missing or damaged, the checkpoint is another step's or of a newer version.
    """
    manifest = _checked_manifest(folder, step)
    for name, expected in manifest["files"].items():
        _check_file(folder / name, expected)
    return _read_state(folder, (STATE, TENSORS))


def read_parts(folder: Path, step: int) -> Iterator[tuple[str, Any]]:
    """Name and state of each part that was added, one after another.

    Raises:
        CheckpointError: as ``read``.
    """
    manifest = _checked_manifest(folder, step)
    for name in manifest["parts"]:
        files = (f"{name}.json", f"{name}.safetensors")
        for file in files:
            _check_file(folder / file, manifest["files"][file])
        yield name, _read_state(folder, files)


def _write_state(folder: Path, names: tuple[str, str], *, saved: snapshots.Snapshot) -> Files:
    tree, tensors = names
    return {
        tree: _write_file(folder / tree, [_json(saved.tree)]),
        tensors: _write_file(folder / tensors, tensor_file.chunks(saved.tensors)),
    }


def _read_state(folder: Path, names: tuple[str, str]) -> Any:
    tree, tensors = names
    try:
        saved = snapshots.Snapshot(json.loads((folder / tree).read_bytes()), tensor_file.read(folder / tensors))
        return snapshots.restore(saved)
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(folder, f"cannot be read ({error})") from error


def _checked_manifest(folder: Path, step: int) -> dict[str, Any]:
    manifest = _read_manifest(folder / MANIFEST)
    if manifest["format"] != FORMAT:
        raise OtherFormat(
            f"{folder} has format {manifest['format']}, this version of m2flow reads {FORMAT}: "
            "use the version that wrote it"
        )
    if manifest["step"] != step:
        raise CheckpointError(f"{folder} holds step {manifest['step']}: give the folder its own name back")
    return manifest


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
