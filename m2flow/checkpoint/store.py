# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run: written in the background, seen whole or not at all, the newest few kept."""

import errno
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from m2flow.checkpoint import record, snapshots
from m2flow.errors import CheckpointError

_COMPLETE = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
"""Folders that hold a whole checkpoint; ``.2`` is a second one of the same step, which replaces the first."""

_UNFINISHED = re.compile(r"step-.*\.tmp-(\d+)")
"""Folders that a process, whose number stands at the end, is filling or deleting."""


_NOTHING = snapshots.Snapshot({})


class Store:
    """Checkpoints in ``directory``, one folder each; ``keep`` of the newest stay.

    A checkpoint gets its name by one rename, after all of its bytes are on the disk; before it is deleted, it loses its
    name by one rename. A process that is killed at any moment leaves whole checkpoints and a folder that nobody takes
    for one. One writer at a time: the run holds a lock on its folder. Readers need none.

    Raises:
        CheckpointError: ``keep`` is less than one.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise CheckpointError(f"keep={keep} would delete every checkpoint: keep at least 1")
        self.directory = Path(directory)
        self.keep = keep
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Copy ``state`` now and write it in the background, after the one before it is written.

        Checkpoints of later steps are deleted afterwards: the run went back, and they belong to what it left.

        Raises:
            CheckpointError: the state holds something that cannot be saved (see ``snapshots``), or the checkpoint
                before this one could not be written; the call may then be repeated.
        """
        _require_step(step)
        self.wait()
        saved = snapshots.snapshot(state)
        self._pending = self._writer.submit(lambda: self._finish(self._begin(step, saved), step, saved=saved))

    def begin(self, step: int) -> Path:
        """The folder of a new checkpoint that several processes write: ``record.write_part`` adds to it, ``finish``
        makes it a checkpoint. Until then nobody takes it for one; the next ``save`` or ``begin`` deletes it.

        Raises:
            CheckpointError: as ``save``.
        """
        _require_step(step)
        self.wait()
        return self._begin(step)

    def finish(self, folder: Path, step: int, *, state: Mapping[str, Any], parts: Sequence[record.Part]) -> None:
        """Make a checkpoint of what ``begin`` returned, now that all ``parts`` of it are there; as ``save``.

        Raises:
            CheckpointError: as ``save``.
        """
        saved = snapshots.snapshot(state)
        self._pending = self._writer.submit(self._finish, folder, step, saved=saved, parts=parts)

    def wait(self) -> None:
        """Return when everything is on the disk.

        Raises:
            CheckpointError: the last ``save`` failed; earlier checkpoints are as they were.
        """
        if self._pending is None:
            return
        wait_for([self._pending])
        done, self._pending = self._pending, None
        done.result()

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending. Whether one is intact, ``load`` finds out."""
        return sorted(self._complete())

    def load(self, step: int | None = None) -> dict[str, Any]:
        """The state that was saved at ``step``; ``None``: the newest intact one, with a warning for each left out.

        Raises:
            CheckpointError: there is none, or it is damaged; the message names the file. Also where a newer one has
                another format: going on from one before it would delete it.
        """
        self.wait()
        complete = self._complete()
        if step is not None and step not in complete:
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has {_listed(complete)}")
        if step is not None:
            return record.read(complete[step], step)
        return self._load_newest(complete)

    def parts(self, step: int) -> Iterator[tuple[str, Any]]:
        """Name and state of each part that processes added to the checkpoint of ``step``, one after another.

        Raises:
            CheckpointError: there is none, or it is damaged; the message names the file.
        """
        self.wait()
        complete = self._complete()
        if step not in complete:
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has {_listed(complete)}")
        return record.read_parts(complete[step], step)

    def _load_newest(self, complete: Mapping[int, Path]) -> dict[str, Any]:
        found: list[str] = []
        for step in sorted(complete, reverse=True):
            try:
                return record.read(complete[step], step)
            except record.OtherFormat:
                raise
            except CheckpointError as error:
                found.append(str(error))
                warnings.warn(f"left out step {step}: {error}", stacklevel=4)
        if not found:
            raise CheckpointError(f"{self.directory} has no checkpoint: train first, or give the folder of another run")
        raise CheckpointError("\n".join([f"no checkpoint in {self.directory} is intact:", *found]))

    def _complete(self) -> dict[int, Path]:
        return {step: path for step, _, path in sorted(self._folders())}

    def _folders(self) -> list[tuple[int, int, Path]]:
        if not self.directory.is_dir():
            return []
        found = [(match, path) for path in self.directory.iterdir() if (match := _COMPLETE.fullmatch(path.name))]
        return [(int(match[1]), int(match[2] or 1), path) for match, path in found]

    def _begin(self, step: int, saved: snapshots.Snapshot = _NOTHING) -> Path:
        path = self.directory / f"step-{step:08d}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            if same := [number for other, number, _ in self._folders() if other == step]:
                path = path.with_name(f"{path.name}.{max(same) + 1}")
            _unfinished(path).mkdir()
        except OSError as error:
            raise _refusal(path, error, saved=saved) from error
        return _unfinished(path)

    def _finish(self, folder: Path, step: int, *, saved: snapshots.Snapshot, parts: Sequence[record.Part] = ()) -> None:
        path = _finished(folder)
        try:
            record.write(folder, step, saved=saved, parts=parts)
            os.rename(folder, path)
            record.sync_folder(self.directory)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise _refusal(path, error, saved=saved) from error
        self._retain(step)

    def _retain(self, step: int) -> None:
        """Delete what is too old, what ``step`` replaced, and what belongs to steps after it."""
        folders = sorted(self._folders())
        stay = list({other: path for other, _, path in folders if other <= step}.values())[-self.keep :]
        for path in [path for _, _, path in folders if path not in stay]:
            try:
                os.rename(path, _unfinished(path))
                shutil.rmtree(_unfinished(path))
            except OSError as error:
                raise CheckpointError(
                    f"step {step} is saved, but the old checkpoint {path} cannot be deleted: {error.strerror}; "
                    "delete it by hand"
                ) from error

    def _sweep(self) -> None:
        """Delete what processes that are gone had not finished."""
        for path in self.directory.iterdir():
            match = _UNFINISHED.fullmatch(path.name)
            # In a container the same number may come again: this process has nothing unfinished here now.
            if match and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
                shutil.rmtree(path)


def _require_step(step: int) -> None:
    if step < 0:
        raise CheckpointError(f"got step {step}, expected 0 or more")


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def _finished(folder: Path) -> Path:
    return folder.with_name(folder.name.rpartition(".tmp-")[0])


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _listed(complete: Mapping[int, Path]) -> str:
    return ", ".join(str(step) for step in sorted(complete)) or "none"


def _refusal(path: Path, error: OSError, *, saved: snapshots.Snapshot) -> CheckpointError:
    size = sum(tensor.nbytes for tensor in saved.tensors.values()) / 1e6
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    reason = f"there is no room for its {size:.1f} MB" if full else str(error.strerror)
    return CheckpointError(
        f"cannot write the checkpoint {path}: {reason} ({error}). Those before it are as they were: mend this and "
        "resume from the newest with --resume auto"
    )
