# SPDX-License-Identifier: Apache-2.0
"""JSON Lines files that are never torn: one row a line, on disk when ``append`` returns, cut back on resume.

JSON has no NaN and no infinity; they are written as the strings "NaN", "Infinity" and "-Infinity", which ``number``
reads back (and so does Python's ``float``).
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from m2flow.errors import M2flowError


class LineFile:
    """Rows appended to ``path``, each with its ``iteration``. The file is created by the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row. A row that does not fit on the disk is taken back, so that the file stays whole.

        Raises:
            M2flowError: the disk is full, or the file cannot be written for another reason.
        """
        line = encode(row)
        try:
            self._write(line)
        except OSError as error:
            raise refusal(self.path, error, num_bytes=len(line)) from error

    def _write(self, line: bytes) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        end = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, end)
            raise

    def keep_before(self, iteration: int) -> list[dict[str, Any]]:
        """Drop the rows of ``iteration`` and later ones, and a torn tail; atomic. Returns the rows kept.

        Raises:
            M2flowError: a line is damaged with good ones after it, or the disk is full.
        """
        self.close()
        kept = [row for row in read(self.path) if row["iteration"] < iteration]
        if self.path.exists():
            data = b"".join(encode(row) for row in kept)
            if data != self.path.read_bytes():
                replace(self.path, data)
        return kept

    def close(self) -> None:
        """Close the file; ``append`` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file; none where there is no file. A torn tail (a killed process, a power cut) is left out.

    Raises:
        M2flowError: a line is damaged with good ones after it.
    """
    lines = path.read_bytes().splitlines(keepends=False) if path.exists() else []
    damaged = 0
    for index, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is None:
            damaged = damaged or index
        elif damaged:
            raise M2flowError(f"line {damaged} of {path} is damaged, expected a JSON object: mend or delete that line")
        else:
            yield row


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("iteration"), int) else None


def encode(row: Mapping[str, Any]) -> bytes:
    """``row`` as one line of UTF-8 JSON; what UTF-8 cannot hold (half of a surrogate pair) becomes a question mark."""
    return (json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """``value`` in JSON's types; NaN and infinities as strings, anything unknown as its text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else _NAMES[str(float(value))]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def number(value: Any) -> float | None:
    """A number as ``encode`` wrote it; ``None`` where ``value`` is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, str) and value in _NAMES.values() else None


def replace(path: Path, data: bytes) -> None:
    """Write a whole file so that nobody ever sees half of it.

    Raises:
        M2flowError: the disk is full, or the file cannot be written for another reason.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise refusal(path, error, num_bytes=len(data)) from error


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""There is no room: on the disk, in the user's quota, or in what a process may write."""


def refusal(path: Path, error: OSError, *, num_bytes: int) -> M2flowError:
    """What to tell a person whose file of ``num_bytes`` more bytes could not be written."""
    if error.errno in FULL:
        return M2flowError(
            f"cannot write {path}: the disk is full; free some space, then go on with --resume auto "
            f"({num_bytes:,} bytes were to be written)"
        )
    return M2flowError(f"cannot write {path}: {error.strerror}; make it writable, or choose another --run-dir")
