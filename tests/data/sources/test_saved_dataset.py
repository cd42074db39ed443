# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import datasets
import pytest

from m2flow.errors import DataError
from tests.data.sources.conftest import source


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two parts, train and test."""
    datasets.disable_progress_bars()
    parts = datasets.DatasetDict()
    for name in ("train", "test"):
        parts[name] = datasets.Dataset.from_list([{"prompt": name, "answer": "x"}])
    parts.save_to_disk(tmp_path / "rows")
    return tmp_path / "rows"


def test_one_of_several_parts_is_chosen(saved: Path):
    assert source("saved_dataset", path=saved, part="test")[0].text == "test"
    with pytest.raises(DataError, match="has the parts train, test: choose one with part"):
        source("saved_dataset", path=saved)
    with pytest.raises(DataError, match=r"has no part 'tset': did you mean 'test'\?"):
        source("saved_dataset", path=saved, part="tset")
    with pytest.raises(DataError, match="it has no parts: leave part out"):
        source("saved_dataset", path=saved / "train", part="train")


def test_a_format_that_was_saved_with_it_does_not_matter(tmp_path: Path):
    rows = datasets.Dataset.from_list([{"prompt": "a", "answer": 1}]).with_format("numpy")
    rows.save_to_disk(tmp_path / "rows")
    assert type(source("saved_dataset", path=tmp_path / "rows")[0].columns["answer"]) is int


def test_an_empty_or_damaged_folder_is_refused(tmp_path: Path, saved: Path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="expected a folder that save_to_disk of the package datasets wrote"):
        source("saved_dataset", path=tmp_path / "nothing")
    datasets.Dataset.from_dict({"prompt": [], "answer": []}).save_to_disk(tmp_path / "empty")
    with pytest.raises(DataError, match="is empty: expected at least one prompt"):
        source("saved_dataset", path=tmp_path / "empty")
    for path in (saved / "train").glob("*.arrow"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot open"):
        source("saved_dataset", path=saved, part="train")
