# SPDX-License-Identifier: Apache-2.0
"""Rows from a Hugging Face data set that was saved to disk."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from m2flow.config import nearest
from m2flow.data.rows import Row, RowsConfig, column_problem, inspect, prompt_of
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source, missing_package
from m2flow.errors import DataError


class SavedDataset(Source):
    """The folder that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote; nothing is downloaded."""

    class Config(RowsConfig):
        """Which folder, and which columns."""

        headline = "path"

        path: Path
        """The saved folder."""
        part: str | None = None
        """Which part of a folder that holds several (train, test, ...)."""

        def problems(self) -> list[str]:
            """The folder or the package is missing, besides what may be wrong with the columns."""
            missing = [] if self.path.is_dir() else [f"path: there is no folder {self.path}"]
            return [*_missing(), *missing, *super().problems()]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for problem in _missing():
            raise DataError(problem)
        self._rows = _open(config)
        if problem := column_problem(self._rows.column_names, config):
            raise DataError(f"{config.path}: {problem}")
        self.hashes = inspect(self._needed(), config, where=str(config.path))

    def _needed(self) -> Iterator[Row]:
        if not len(self._rows):
            return
        for number, row in enumerate(self._rows.select_columns(self.config.required_columns())):
            yield _place(number), partial(dict, row)

    def __getitem__(self, index: int) -> Prompt:
        return prompt_of(self._rows[index], self.config, default_id=_place(index))


def _place(number: int) -> str:
    return f"row {number}"


def _open(config: Any) -> Any:
    import datasets

    try:
        found = datasets.load_from_disk(str(config.path))
    except IndexError:
        raise DataError(f"{config.path} is empty: expected at least one prompt") from None
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot open {config.path}: {error}; expected a folder that save_to_disk of the package datasets wrote"
        ) from error
    parts = list(found) if isinstance(found, datasets.DatasetDict) else []
    if config.part is None and parts:
        raise DataError(f"{config.path} has the parts {', '.join(map(str, parts))}: choose one with part")
    if config.part is not None and config.part not in parts:
        known = nearest(config.part, [str(part) for part in parts]) if parts else "it has no parts: leave part out"
        raise DataError(f"{config.path} has no part '{config.part}': {known}")
    rows = found if config.part is None else found[config.part]
    return rows.with_format(None)


def _missing() -> list[str]:
    return missing_package("datasets", reads="Hugging Face data sets", extra="data")
