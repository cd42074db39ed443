# SPDX-License-Identifier: Apache-2.0
"""Rows from JSON Lines files: one JSON object a line."""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from m2flow.data.files import FilesConfig, files_of
from m2flow.data.rows import Row, inspect, prompt_of, short
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source
from m2flow.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
"""How a compressed file begins."""


class Jsonl(Source):
    """A ``.jsonl`` file or a folder of them.

    Only the lines' places are kept in memory; a line is read when its turn comes.
    Every line counts: an empty or damaged one is an error, not a gap. Empty lines at a file's end are none.
    """

    class Config(FilesConfig):
        """Which files, and which columns."""

        headline = "path"
        suffix: ClassVar[str] = ".jsonl"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._starts: list[tuple[Path, int, int]] = []
        self.hashes = inspect(self._lines(), config, where=str(config.path))

    def _lines(self) -> Iterator[Row]:
        for path in files_of(self.config):
            for number, start, line in _numbered(path):
                self._starts.append((path, number, start))
                yield f"{path.name}:{number}", partial(_parse, line)

    def __getitem__(self, index: int) -> Prompt:
        path, number, start = self._starts[index]
        place = f"{path.name}:{number}"
        with path.open("rb") as file:
            file.seek(start)
            line = file.readline()
        try:
            return prompt_of(_parse(line), self.config, default_id=place)
        except (ValueError, KeyError) as error:
            raise DataError(
                f"{path} changed while it was in use, line {number}: {error}; start the run again"
            ) from error


def _numbered(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, start and bytes of each line. Only a newline ends one: text may hold any other separator."""
    blank: list[tuple[int, int, bytes]] = []
    start = 0
    with path.open("rb") as file:
        if file.peek(2).startswith(GZIP):
            raise DataError(f"{path} is compressed, and lines are read in any order: unpack it with gunzip")
        for number, line in enumerate(file, start=1):
            here = (number, start, line)
            start += len(line)
            if not line.strip():
                blank.append(here)
                continue
            yield from blank
            blank.clear()
            yield here


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.removeprefix(BYTE_ORDER_MARK).decode("utf-8"), parse_constant=_refuse, parse_int=_int)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start}): save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg}, column {error.colno}): {short(_head(line))}") from None
    except RecursionError:
        raise ValueError(f"nested too deeply to be read: {short(_head(line))}") from None
    if not isinstance(row, dict):
        raise ValueError(f"holds {short(row)} ({type(row).__name__}), expected a JSON object of columns")
    return row


def _head(line: bytes) -> str:
    return line[:200].decode("utf-8", "replace").rstrip("\r\n")


def _int(digits: str) -> int:
    if len(digits) > sys.get_int_max_str_digits() > 0:
        raise ValueError(f"holds a whole number of {len(digits)} digits: write it as text")
    return int(digits)


def _refuse(constant: str) -> Any:
    raise ValueError(f"holds {constant}, which is no JSON: write null or a number")
