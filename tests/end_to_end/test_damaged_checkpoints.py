# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints: one that is whole is found, or nothing is touched."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m2flow.checkpoint import record
from m2flow.checkpoint.store import Store
from m2flow.errors import (
    CheckpointError,
    ConfigError,
)
from tests.end_to_end.conftest import steps, train


def _cut(name: str, keep: int) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def _flip(step: Path) -> None:
    data = bytearray((step / "tensors.safetensors").read_bytes())
    data[5000] ^= 1
    (step / "tensors.safetensors").write_bytes(data)


def _newer_version(step: Path) -> None:
    contents = json.loads((step / "manifest.json").read_text())
    contents |= {"format": record.FORMAT + 1}
    contents.pop("sha256")
    (step / "manifest.json").write_text(json.dumps({**contents, "sha256": record._digest_of(contents)}))


def _newest(folder: Path) -> Path:
    return folder / "checkpoints" / "step-00000002"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip, "tensors.safetensors has the checksum"),
        (_cut("state.json", 10), "state.json has 10 bytes, expected"),
        (_cut("tensors.safetensors", 10), "tensors.safetensors has 10 bytes, expected"),
        (_cut("manifest.json", 10), "manifest.json is no JSON"),
        (lambda step: (step / "manifest.json").unlink(), "manifest.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_left_out_aloud_for_the_one_before(
    done: Path, damage: Callable[[Path], Any], message: str
):
    damage(_newest(done))
    with pytest.warns(UserWarning, match=f"left out step 2: the checkpoint is damaged: .*{message}"):
        train(done, resume="auto")
    assert steps(done) == [1, 2] and len((done / "metrics.jsonl").read_text().splitlines()) == 2
    Store(done / "checkpoints", keep=2).load(2)


def test_a_checkpoint_of_another_version_is_never_passed_over(done: Path):
    _newer_version(_newest(done))
    with pytest.raises(CheckpointError, match="has format 2, this version of m2flow reads 1: use the version that"):
        train(done, resume="auto")
    assert steps(done) == [1, 2]


def test_where_no_checkpoint_is_whole_nothing_is_touched(done: Path):
    for step in (done / "checkpoints").iterdir():
        _flip(step)
    before = {path: path.read_bytes() for path in done.rglob("*.jsonl")}
    assert len(before) == 2
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match=r"(?s)no checkpoint in .* is intact:.*step-"):
        train(done, resume="auto")
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("damage", [lambda path: path.write_text("{"), Path.unlink])
def test_settings_that_are_damaged_or_missing_protect_the_checkpoints(done: Path, damage: Callable[[Path], Any]):
    damage(done / "config.json")
    with pytest.raises(CheckpointError, match=r"config.json is (damaged|missing)"):
        train(done, resume="auto")
    with pytest.raises(ConfigError, match="already holds a run: resume it with --resume auto, or give another"):
        train(done)
    assert steps(done) == [1, 2]
