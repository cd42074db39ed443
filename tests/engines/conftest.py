# SPDX-License-Identifier: Apache-2.0
"""A Llama of a few thousand weights whose tokens are bytes, and a short way to generate with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from m2flow.data.samples import Group, Prompt
from m2flow.engines.base import SamplingConfig
from m2flow.engines.hf import Hf
from m2flow.policies.llm import Llm

END = 256
"""The end-of-sequence token."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, numbered in the order of the alphabet; then the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, grouped-query attention, and one stop token in fifteen."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=36,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        initializer_range=0.2,
        eos_token_id=END,
        bos_token_id=None,
    )
    module = LlamaForCausalLM(config)
    # Many stop tokens, so that lengths differ much.
    module.generation_config.eos_token_id = [END, *range(0, 256, 16)]
    folder = tmp_path_factory.mktemp("llama")
    module.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def llama(llama_folder: Path) -> Llm:
    """A policy of its own for each test."""
    return Llm(Llm.Config(model=str(llama_folder)))


@pytest.fixture(scope="session")
def peer(llama_folder: Path) -> Any:
    """The same weights in the stock implementation."""
    return LlamaForCausalLM.from_pretrained(llama_folder, dtype=torch.float32, attn_implementation="eager")


@pytest.fixture(scope="session")
def generate() -> Callable[..., dict[str, Group]]:
    """``generate(policy, prompts, samples=3, seed=0, iteration=0, sampling=..., **engine options)``."""

    def run(policy: Any, prompts: list[Prompt], *, sampling: Any = None, **options: Any) -> dict[str, Group]:
        asked = {"seed": options.pop("seed", 0), "iteration": options.pop("iteration", 0)}
        asked["samples_per_prompt"] = options.pop("samples", 3)
        engine = Hf(Hf.Config(**options), policy)
        groups = engine.generate(prompts, sampling=sampling or SamplingConfig(max_new_tokens=20), **asked)
        return {group.prompt.id: group for group in groups}

    return run
