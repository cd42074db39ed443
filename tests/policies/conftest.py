# SPDX-License-Identifier: Apache-2.0
"""Small random models of several families, on disk as any model is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% if think %}hm{% endif %}{% endif %}"
)


def make_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token a character; ``<|end|>`` ends a turn and is not the end-of-sequence token."""
    special = ["<pad>", "<eos>", "<|turn|>", "<|end|>", "<unk>"]
    letters = "abcdefghijklmnopqrstuvwxyz:?!. +-=0123456789"
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate([*special, *letters])}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=special[2:4],
    )
    fast.chat_template = chat_template
    return fast


def make_folder(
    folder: Path, family: str = "llama", *, chat_template: str | None = CHAT_TEMPLATE, **options: Any
) -> Path:
    """A random model of ``family`` with its tokenizer; its weights are large enough for logits to matter."""
    torch.manual_seed(1)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **options}))
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(5 if weight.dim() > 1 else 1)
    module.save_pretrained(folder)
    make_tokenizer(chat_template).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def build() -> Callable[..., Path]:
    """``make_folder``: a new folder with a random model."""
    return make_folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = make_folder(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder


@pytest.fixture
def llama(folder_of: Callable[[str], Path]) -> Path:
    """A Llama folder, not to be changed."""
    return folder_of("llama")
