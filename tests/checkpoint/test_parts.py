# SPDX-License-Identifier: Apache-2.0
"""Checkpoints to which several processes add parts."""

from pathlib import Path

import pytest
import torch

from m2flow.checkpoint import record
from m2flow.checkpoint.store import Store
from m2flow.errors import CheckpointError


def _add(folder: Path, rank: int) -> record.Part:
    return record.write_part(folder, f"rank-{rank}", state={"rank": rank, "w": torch.full((3,), float(rank))})


def _saved(tmp_path: Path) -> Store:
    store = Store(tmp_path, keep=2)
    folder = store.begin(4)
    store.finish(folder, 4, state={"iteration": 4}, parts=[_add(folder, rank) for rank in range(3)])
    store.wait()
    return store


def test_parts_come_back_one_by_one_beside_the_state(tmp_path: Path) -> None:
    store = _saved(tmp_path)
    assert store.load(4) == {"iteration": 4}
    found = list(store.parts(4))
    assert [name for name, _ in found] == ["rank-0", "rank-1", "rank-2"]
    assert [part["rank"] for _, part in found] == [0, 1, 2]
    assert all(torch.equal(part["w"], torch.full((3,), float(part["rank"]))) for _, part in found)


def test_until_it_is_finished_there_is_no_checkpoint_and_the_next_one_sweeps_it_away(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    left = store.begin(4)
    _add(left, 0)
    assert store.steps() == [] and left.is_dir()
    store.save(5, {"iteration": 5})
    store.wait()
    assert store.steps() == [5] and not left.exists()


def test_a_checkpoint_without_parts_has_none(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=2)
    store.save(1, {"iteration": 1})
    assert list(store.parts(1)) == []
    with pytest.raises(CheckpointError, match="no checkpoint of step 2; it has 1"):
        store.parts(2)


@pytest.mark.parametrize("name", ["rank-1.json", "rank-1.safetensors"])
def test_a_part_that_is_damaged_or_missing_is_named_whoever_reads(name: str, tmp_path: Path) -> None:
    store = _saved(tmp_path)
    file = tmp_path / "step-00000004" / name
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    for read in (lambda: list(store.parts(4)), lambda: store.load(4)):
        with pytest.raises(CheckpointError, match=f"{name} has the checksum"):
            read()
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        list(store.parts(4))


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = Store(tmp_path, keep=2).begin(1)
    _add(folder, 0)
    with pytest.raises(FileExistsError):
        _add(folder, 0)
