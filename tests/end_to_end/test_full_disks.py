# SPDX-License-Identifier: Apache-2.0
"""Full disks and folders that cannot be written: the file is named, and the run goes on once there is room."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import m2flow as mf
from m2flow.checkpoint import record
from m2flow.checkpoint.store import Store
from m2flow.errors import (
    FlowError,
    M2flowError,
    ModelError,
    RewardError,
)
from tests.end_to_end.conftest import steps, train


def _boom(completion: str) -> float:
    raise ValueError("boom")


def _full_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Opening a file of this name for writing meets a full disk, as /dev/full has it."""
    true_open = os.open

    def opening(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        full = flags & (os.O_WRONLY | os.O_RDWR) and str(path).endswith((name, f"{name}.tmp"))
        return true_open("/dev/full" if full else path, os.O_WRONLY if full else flags, *rest, **named)

    def python_open(path: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if str(path).endswith((name, f"{name}.tmp")) and set(mode) & set("wxa"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return open(path, mode, *rest, **named)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(record, "open", python_open, raising=False)
    monkeypatch.setattr("m2flow.observe.line_file.open", python_open, raising=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("metrics.jsonl", r"cannot write .*metrics.jsonl: the disk is full; free .*\([\d,]+ bytes were"),
        ("samples.jsonl", r"cannot write .*samples.jsonl: the disk is full"),
        ("report.html", r"cannot write .*report.html: the disk is full; free .*\([\d,]+ bytes were"),
        ("trace.json", r"cannot write .*trace.json: the disk is full"),
        ("config.json", r"cannot write .*config.json: the disk is full"),
        ("tensors.safetensors", r"cannot write the checkpoint .*step-00000003: there is no room for its 7.8 MB"),
    ],
)
def test_a_full_disk_names_the_file_and_its_size_and_the_run_goes_on_once_there_is_room(
    done: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
):
    with monkeypatch.context() as patch:
        _full_for(patch, name)
        with pytest.raises(M2flowError, match=message):
            train(done, resume="auto", iterations=3)
    store = Store(done / "checkpoints", keep=2)
    assert store.steps()[-1] in (2, 3) and store.load(store.steps()[-1])
    train(done, resume="auto", iterations=4)
    assert steps(done) == [3, 4]
    lines = [json.loads(line)["iteration"] for line in (done / "metrics.jsonl").read_text().splitlines()]
    assert lines == [0, 1, 2, 3]


def test_the_first_thing_that_went_wrong_is_the_error_and_the_others_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _full_for(monkeypatch, "report.html")
    with pytest.raises(RewardError, match="boom") as caught:
        train(tmp_path / "run", reward=mf.Reward(_boom))
    assert ["the disk is full" in note for note in caught.value.__notes__] == [True]


def test_an_export_on_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy = mf.Llm(mf.Llm.Config(model="tiny"))

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(policy.tokenizer), "save_pretrained", no_room)
        with pytest.raises(ModelError, match=r"No space left on device; nothing of it was kept. It needs 2.6 MB"):
            policy.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())
    policy.save(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FlowError, match=r"cannot write the run's folder .*: Not a directory; choose another --run-dir"):
        train(tmp_path / "file" / "run")


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Root may write everywhere, so that the system's own refusal cannot be had in every place that tests run in.
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FlowError, match=r"cannot write the run's folder .*: Permission denied; choose another"):
        train(tmp_path / "run")
