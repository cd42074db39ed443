# SPDX-License-Identifier: Apache-2.0
"""The parts of the model that ships with m2flow: tokenizer, network and supervised loss; pretrain_tiny.py trains it."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<eos>", "<unk>"]
CONTEXT = 256


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character of printable ASCII."""
    vocabulary = [*SPECIAL, "\n", *(chr(code) for code in range(32, 127))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT, **names)


def make_model(vocabulary: int) -> LlamaForCausalLM:
    """A Llama of 0.65 million parameters."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 4}
    tokens = {"vocab_size": vocabulary, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, **tokens, tie_word_embeddings=True, max_position_embeddings=CONTEXT))


def token_losses(
    model: LlamaForCausalLM, texts: list[tuple[str, str]], *, tokenizer: PreTrainedTokenizerFast
) -> torch.Tensor:
    """[texts, tokens]: minus the log-probability of each token of the answers and their ends; 0 elsewhere."""
    ids = tokenizer([q + a + "<eos>" for q, a in texts], padding=True, return_tensors="pt")["input_ids"]
    places = torch.arange(ids.shape[1])
    start = torch.tensor([[len(q)] for q, _ in texts])
    end = torch.tensor([[len(q + a)] for q, a in texts])
    labels = torch.where((places >= start) & (places <= end), ids, -100)
    logits = model(ids, use_cache=False).logits[:, :-1]
    return cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none")
