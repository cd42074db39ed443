# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from m2flow.checkpoint import tensor_file

TENSORS = {
    "odd": torch.tensor([True, False, True]),
    "/path/with.dots": torch.randn(2, 3).bfloat16(),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    'ümlaut "quoted"': torch.arange(5),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
}


def _write(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.write_bytes(b"".join(tensor_file.chunks(tensors)))
    return path


def _require_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and tensor.shape == right[name].shape
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path):
    _require_equal(safetensors.torch.load_file(_write(tmp_path / "a", TENSORS)), TENSORS)


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path):
    safetensors.torch.save_file(TENSORS, tmp_path / "a", metadata={"format": "pt"})
    _require_equal(tensor_file.read(tmp_path / "a"), TENSORS)


def test_no_tensors_make_a_file_too(tmp_path: Path):
    assert tensor_file.read(_write(tmp_path / "a", {})) == {} == safetensors.torch.load_file(tmp_path / "a")


def test_a_tensor_larger_than_a_chunk_is_whole(tmp_path: Path):
    large = torch.arange(5_000_000, dtype=torch.int32)
    assert len(list(tensor_file.chunks({"a": large}))) == 3
    assert torch.equal(tensor_file.read(_write(tmp_path / "a", {"a": large}))["a"], large)


def test_what_is_read_can_be_changed_without_changing_the_file(tmp_path: Path):
    path = _write(tmp_path / "a", {"a": torch.zeros(3)})
    tensor_file.read(path)["a"].add_(1)
    assert tensor_file.read(path)["a"].sum() == 0


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path):
    path = _write(tmp_path / "a", {"a": torch.zeros(30)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="tensor a has not the 120 bytes"):
        tensor_file.read(path)
