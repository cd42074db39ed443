# SPDX-License-Identifier: Apache-2.0
"""Rows from Parquet files."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from m2flow.data.files import FilesConfig, files_of
from m2flow.data.rows import Row, column_problem, inspect, prompt_of
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source, missing_package
from m2flow.errors import DataError


class Parquet(Source):
    """A ``.parquet`` file or a folder of them, mapped into memory where the system can."""

    class Config(FilesConfig):
        """Which files, and which columns."""

        headline = "path"
        suffix: ClassVar[str] = ".parquet"

        def problems(self) -> list[str]:
            """The package that reads the files is missing, besides the rest."""
            return [*_missing(), *super().problems()]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for problem in _missing():
            raise DataError(problem)
        self._files = files_of(config)
        self._tables = [_open(path, config) for path in self._files]
        self._ends = list(accumulate(table.num_rows for table in self._tables))
        self.hashes = inspect(self._rows(), config, where=str(config.path))

    def _rows(self) -> Iterator[Row]:
        for path, table in zip(self._files, self._tables, strict=True):
            number = 0
            for batch in table.select(self.config.required_columns()).to_batches(max_chunksize=1000):
                for row in batch.to_pylist():
                    yield _place(path, number), partial(_same, row)
                    number += 1

    def __getitem__(self, index: int) -> Prompt:
        which = bisect_right(self._ends, index)
        table = self._tables[which]
        number = index - (self._ends[which] - table.num_rows)
        row = table.slice(number, 1).to_pylist()[0]
        return prompt_of(row, self.config, default_id=_place(self._files[which], number))


def _same(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return row


def _place(path: Path, number: int) -> str:
    return f"{path.name}, row {number}"


def _open(path: Path, config: FilesConfig) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is no readable Parquet file: {error}") from error
    if problem := column_problem(table.column_names, config):
        raise DataError(f"{path}: {problem}")
    return table


def _missing() -> list[str]:
    return missing_package("pyarrow", reads="Parquet files", extra="data")
