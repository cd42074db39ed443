# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from m2flow.errors import DataError
from tests.data.sources.conftest import source


def _write(path: Path, **columns: object) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_rows_of_a_folder_run_on_over_its_files(tmp_path: Path):
    for name, prompts in (("b", ["x"]), ("a", ["y", "z"]), ("c", ["u", "v"])):
        _write(tmp_path / f"{name}.parquet", prompt=prompts, answer=prompts)
    rows = source("parquet", path=tmp_path)
    assert [rows[i].text for i in range(5)] == ["y", "z", "x", "u", "v"]
    assert [rows[i].id for i in range(3)] == ["a.parquet, row 0", "a.parquet, row 1", "b.parquet, row 0"]


@pytest.mark.parametrize("damage", [b"", b"not parquet", None])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes | None):
    path = tmp_path / "rows.parquet"
    _write(path, prompt=["a"], answer=["b"])
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    with pytest.raises(DataError, match=r"rows.parquet is no readable Parquet file"):
        source("parquet", path=path)


def test_a_file_without_rows_is_refused(tmp_path: Path):
    _write(tmp_path / "rows.parquet", prompt=pyarrow.array([], pyarrow.string()), answer=pyarrow.array([]))
    with pytest.raises(DataError, match="is empty: expected at least one prompt"):
        source("parquet", path=tmp_path / "rows.parquet")


def test_the_file_whose_columns_differ_is_named(tmp_path: Path):
    _write(tmp_path / "a.parquet", prompt=["x"], answer=["y"])
    _write(tmp_path / "b.parquet", prompt=["x"])
    with pytest.raises(DataError, match=r"b.parquet: no column 'answer'"):
        source("parquet", path=tmp_path)
