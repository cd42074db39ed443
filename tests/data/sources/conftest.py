# SPDX-License-Identifier: Apache-2.0
"""One data set, written in every format: what holds of a source of rows holds of all of them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from m2flow.data.sources.base import Source
from m2flow.registry import build, choose

Rows = Sequence[dict[str, Any]]


def _jsonl(rows: Rows, folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _parquet(rows: Rows, folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), folder / "rows.parquet", row_group_size=2)
    return folder / "rows.parquet"


def _saved_dataset(rows: Rows, folder: Path) -> Path:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list(list(rows)).save_to_disk(folder / "rows")
    return folder / "rows"


WRITERS = {"jsonl": _jsonl, "parquet": _parquet, "saved_dataset": _saved_dataset}


def source(name: str, **options: Any) -> Source:
    """The source ``name``, opened."""
    return build(choose("sources", {"name": name, **options}))


@pytest.fixture(params=WRITERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Source]:
    """Writes rows in one format, and opens them as a source with the options given."""

    def write_and_open(rows: Rows, **options: Any) -> Source:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return source(request.param, path=WRITERS[request.param](rows, folder), **options)

    return write_and_open
