# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from m2flow.checkpoint import record, tensor_file
from m2flow.checkpoint.store import Store
from m2flow.errors import CheckpointError


def _state(number: int) -> dict[str, Any]:
    return {"iteration": number, "weights": torch.full((64,), float(number)), "position": [number, (0.1, None)]}


def _saved(directory: Path, *steps: int, keep: int = 9) -> Store:
    store = Store(directory, keep=keep)
    for step in steps:
        store.save(step, _state(step))
    store.wait()
    return store


def _require(state: dict[str, Any], number: int) -> None:
    assert state["iteration"] == number and state["position"] == [number, (0.1, None)]
    assert torch.equal(state["weights"], torch.full((64,), float(number)))


def test_what_was_saved_is_loaded_by_another_store(tmp_path: Path):
    _saved(tmp_path, 3, 10)
    store = Store(tmp_path, keep=1)
    assert store.steps() == [3, 10]
    _require(store.load(3), 3)
    _require(store.load(None), 10)


def test_a_folder_holds_three_files_with_their_checksums(tmp_path: Path):
    _saved(tmp_path / "checkpoints", 20)
    folder = tmp_path / "checkpoints" / "step-00000020"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "state.json", "tensors.safetensors"]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        name: (folder / name).stat().st_size for name in ("state.json", "tensors.safetensors")
    }


def test_the_newest_are_kept(tmp_path: Path):
    store = _saved(tmp_path, 1, 2, 3, 5, 8, keep=2)
    assert store.steps() == [5, 8]
    assert len(list(tmp_path.iterdir())) == 2


def test_more_than_eight_digits_sort_as_numbers(tmp_path: Path):
    assert _saved(tmp_path, 99_999_999, 100_000_000, keep=1).steps() == [100_000_000]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path):
    store = _saved(tmp_path, 4, keep=2)
    for number in (40, 41):
        store.save(4, _state(number))
    assert _read_newest(store) == 41
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004.3"]


def test_going_back_drops_the_checkpoints_that_were_left(tmp_path: Path):
    store = _saved(tmp_path, 1, 2, 3, 4)
    _require(store.load(2), 2)
    store.save(3, _state(30))
    assert _read_newest(store) == 30
    assert store.steps() == [1, 2, 3]


def _read_newest(store: Store) -> int:
    store.wait()
    return store.load(None)["iteration"]


def test_the_state_may_change_as_soon_as_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    may_write = _hold_writes(monkeypatch)
    store, state = Store(tmp_path, keep=1), _state(1)
    store.save(1, state)
    state["weights"].zero_()
    state["position"].clear()
    assert store.steps() == []
    may_write.set()
    _require(store.load(None), 1)


def _hold_writes(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    may_write, write = threading.Event(), record.write

    def held(*args: Any, **kwargs: Any) -> None:
        assert may_write.wait(30)
        write(*args, **kwargs)

    monkeypatch.setattr(record, "write", held)
    return may_write


def test_one_checkpoint_is_written_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    may_write = _hold_writes(monkeypatch)
    store, second_returned = Store(tmp_path, keep=2), threading.Event()
    store.save(1, _state(1))
    second = threading.Thread(target=lambda: (store.save(2, _state(2)), second_returned.set()))
    second.start()
    assert not second_returned.wait(0.1)
    may_write.set()
    second.join()
    store.wait()
    assert store.steps() == [1, 2]


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES = {"flipped": _flip_a_bit, "cut": _cut, "missing": Path.unlink, "empty": lambda path: path.write_bytes(b"")}


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_the_one_before_is_taken(tmp_path: Path, damage: str, name: str):
    store = _saved(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / name
    DAMAGES[damage](path)
    with pytest.raises(CheckpointError, match="Delete its folder, or restore it") as error:
        store.load(2)
    assert str(path) in str(error.value)
    with pytest.warns(UserWarning, match="left out step 2: the checkpoint is damaged"):
        _require(store.load(None), 1)


def test_every_single_changed_byte_is_noticed(tmp_path: Path):
    store = _saved(tmp_path, 1)
    for name in ("manifest.json", "state.json"):
        path = tmp_path / "step-00000001" / name
        good = path.read_bytes()
        for at in range(len(good) - 1):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(CheckpointError):
                store.load(1)
        path.write_bytes(good)
    _require(store.load(1), 1)


def test_a_folder_under_the_name_of_another_step_is_refused(tmp_path: Path):
    store = _saved(tmp_path, 1)
    shutil.copytree(tmp_path / "step-00000001", tmp_path / "step-00000002")
    with pytest.raises(CheckpointError, match="holds step 1"):
        store.load(2)


def test_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = _saved(tmp_path, 1)
    monkeypatch.setattr(record, "FORMAT", 0)
    with pytest.raises(CheckpointError, match="has format 1, this version of m2flow reads 0"):
        store.load(1)


def test_where_none_is_intact_all_are_named(tmp_path: Path):
    store = _saved(tmp_path, 1, 2)
    _cut(tmp_path / "step-00000001" / "state.json")
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    with (
        warnings.catch_warnings(),
        pytest.raises(CheckpointError, match=r"(?s)none|no checkpoint .*02/manifest.*01/state"),
    ):
        warnings.simplefilter("ignore")
        store.load(None)


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(CheckpointError, match="has no checkpoint: train first"):
        Store(tmp_path / "nowhere", keep=1).load(None)
    with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has 1, 2"):
        _saved(tmp_path, 1, 2).load(7)
    with pytest.raises(CheckpointError, match="expected 0 or more"):
        Store(tmp_path, keep=1).save(-1, {})
    with pytest.raises(CheckpointError, match="keep at least 1"):
        Store(tmp_path, keep=0)


def test_readers_change_nothing_on_disk(tmp_path: Path):
    assert Store(tmp_path / "nowhere", keep=1).steps() == []
    assert list(tmp_path.iterdir()) == []


def test_retention_never_deletes_the_only_intact_checkpoint(tmp_path: Path):
    _saved(tmp_path, 1, 2, 3)
    for step in (2, 3):
        _cut(tmp_path / f"step-0000000{step}" / "tensors.safetensors")
    store = Store(tmp_path, keep=1)
    with pytest.warns(UserWarning, match="left out"):
        _require(store.load(None), 1)
    store.save(2, _state(20))
    assert _read_newest(store) == 20
    assert store.steps() == [2]


def test_a_failed_write_is_raised_at_the_next_call_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = _saved(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full_disk)
        store.save(2, _state(2))
        with pytest.raises(CheckpointError, match="there is no room") as error:
            store.save(3, _state(3))
    assert str(tmp_path / "step-00000002") in str(error.value) and "--resume auto" in str(error.value)
    assert store.steps() == [1] and len(list(tmp_path.iterdir())) == 1
    store.save(3, _state(3))
    assert _read_newest(store) == 3


def _full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_up_in_the_middle_leaves_earlier_checkpoints_alone(tmp_path: Path):
    store = _saved(tmp_path, 1, keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        store.save(2, {"large": torch.zeros(1_000_000)})
        with pytest.raises(CheckpointError, match=r"no room for its 4.0 MB"):
            store.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _require(store.load(None), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_folder_that_cannot_be_made_is_an_error_of_the_next_call(tmp_path: Path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "checkpoints", keep=1)
    store.save(1, {})
    with pytest.raises(CheckpointError, match="Not a directory"):
        store.wait()


def test_leftovers_of_dead_processes_are_removed_and_those_of_living_ones_stay(tmp_path: Path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout
    for process in (int(dead), os.getppid(), os.getpid()):
        (tmp_path / f"step-00000005.tmp-{process}").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    store = Store(tmp_path, keep=1)
    assert store.steps() == []
    store.save(6, _state(6))
    store.wait()
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-00000006",
        f"step-00000005.tmp-{os.getppid()}",
        "notes.txt",
    }


def test_a_pickle_in_place_of_a_file_is_never_executed(tmp_path: Path):
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    store = _saved(tmp_path, 1)
    path = tmp_path / "step-00000001" / "tensors.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    # With right checksums too: someone who can write the folder can write those as well.
    files = {name: _entry(path.with_name(name)) for name in ("state.json", "tensors.safetensors")}
    contents = {"format": 1, "step": 1, "files": files}
    path.with_name("manifest.json").write_text(json.dumps({**contents, "sha256": record._digest_of(contents)}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.load(1)
    assert not (tmp_path / "executed").exists()


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": record._digest_of_file(path)}


def test_a_checkpoint_outlives_the_process_that_forgot_to_wait(tmp_path: Path):
    code = "import sys, pathlib; from m2flow.checkpoint.store import Store; Store(pathlib.Path(sys.argv[1]), 1)"
    code += ".save(1, {'a': 2**70})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert Store(tmp_path, keep=1).load(None) == {"a": 2**70}


def test_memory_holds_one_copy_of_the_state_while_it_is_written():
    large = {"a": torch.zeros(5_000_000)}
    views = [chunk for chunk in tensor_file.chunks(large) if isinstance(chunk, memoryview)]
    assert sum(len(view) for view in views) == large["a"].nbytes
    views[0][0] = 1
    assert large["a"].view(torch.uint8)[0] == 1
