# SPDX-License-Identifier: Apache-2.0
"""A model folder is complete and whole, or there is an error that says what is wrong: never a random weight."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from m2flow.errors import ModelError
from m2flow.policies.llm import Llm

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(llama, tmp_path / "model"))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def edit_json(path: Path, **options: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **options}))


def load(folder: Path) -> None:
    policy = Llm(Llm.Config(model=str(folder)))
    assert policy.module and policy.tokenizer and policy.stop_token_ids and policy.max_context


def test_an_untouched_folder_loads(folder: Path):
    load(folder)


def test_a_missing_weight_is_an_error(folder: Path):
    edit_weights(folder, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        ModelError, match=r"1 missing \(model\.layers\.1\.mlp\.up_proj\.weight\).*never fills in random"
    ):
        load(folder)


def test_a_missing_untied_head_is_an_error(folder: Path):
    edit_weights(folder, lambda w: w.pop("lm_head.weight"))
    with pytest.raises(ModelError, match=r"1 missing \(lm_head\.weight\)"):
        load(folder)


def test_a_weight_too_many_is_an_error(folder: Path):
    edit_weights(folder, lambda w: w.update({"model.layers.0.extra.weight": torch.ones(2)}))
    with pytest.raises(ModelError, match=r"1 that the model has no place for \(model\.layers\.0\.extra\.weight\)"):
        load(folder)


def test_a_layer_too_many_is_an_error(folder: Path):
    edit_json(folder / "config.json", num_hidden_layers=1, layer_types=None)
    with pytest.raises(ModelError, match="no place for"):
        load(folder)


def test_a_weight_of_another_shape_is_an_error(folder: Path):
    edit_weights(folder, lambda w: w.update({"model.norm.weight": torch.ones(8)}))
    with pytest.raises(ModelError, match=r"1 of another shape than config.json says \(model\.norm\.weight\)"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_an_error(folder: Path, value: float):
    edit_weights(folder, lambda w: w["model.norm.weight"].fill_(value))
    with pytest.raises(ModelError, match=r"infinite or not a number: model\.norm\.weight"):
        load(folder)


@pytest.mark.parametrize("keep_bytes", [0, 5, 200, -1])
def test_a_cut_file_is_an_error(folder: Path, keep_bytes: int):
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:keep_bytes])
    with pytest.raises(ModelError, match="damaged"):
        load(folder)


def test_a_missing_shard_is_an_error(folder: Path):
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    names = load_file(folder / "model-00001-of-00002.safetensors").keys()
    shards = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    shards["lm_head.weight"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    with pytest.raises(ModelError, match="00002-of-00002"):
        load(folder)


def test_a_folder_without_configuration_names_what_it_holds(folder: Path):
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json.*model\.safetensors"):
        load(folder)


def test_a_damaged_configuration_is_an_error(folder: Path):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json"):
        load(folder)


def test_an_unknown_architecture_is_an_error(folder: Path):
    edit_json(folder / "config.json", model_type="hexapod")
    with pytest.raises(ModelError, match="hexapod"):
        load(folder)


def test_an_empty_folder_is_an_error(tmp_path: Path):
    with pytest.raises(ModelError, match="the folder is empty"):
        load(tmp_path)


def test_a_file_is_no_model_folder(folder: Path):
    with pytest.raises(ModelError, match="is a file"):
        load(folder / WEIGHTS)


def test_a_missing_path_is_an_error(tmp_path: Path):
    with pytest.raises(ModelError, match="there is no model folder"):
        load(tmp_path / "nowhere")


def test_a_missing_tokenizer_is_an_error(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        load(folder)


def test_a_damaged_tokenizer_is_an_error(folder: Path):
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match="tokenizer"):
        load(folder)


def test_a_tokenizer_of_another_model_is_an_error(build: Callable[..., Path], tmp_path: Path):
    with pytest.raises(ModelError, match="49 tokens, the model 40"):
        load(build(tmp_path, vocab_size=40))


def test_pickled_weights_are_never_read(folder: Path):
    weights = load_file(folder / WEIGHTS)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"pytorch_model\.bin, a pickle.*convert it once"):
        load(folder)


def test_quantized_weights_are_refused(folder: Path):
    edit_json(folder / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    with pytest.raises(ModelError, match="quantized"):
        load(folder)


def test_a_damaged_generation_configuration_is_an_error(folder: Path):
    (folder / "generation_config.json").write_text("[")
    with pytest.raises(ModelError, match="generation_config"):
        load(folder)


def test_a_configuration_without_a_context_is_an_error(folder: Path):
    edit_json(folder / "config.json", max_position_embeddings=0)
    with pytest.raises(ModelError, match="max_position_embeddings"):
        load(folder)


def test_a_hub_name_without_the_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"hub cannot be reached.*'tiny'"):
        load(Path("nobody/no-such-model"))


def test_a_name_that_no_hub_can_have_is_an_error():
    with pytest.raises(ModelError, match="neither a folder nor a hub name"):
        load(Path("what is this"))
