# SPDX-License-Identifier: Apache-2.0
"""Make the model that ships with m2flow: it can add two numbers below 100, and does so about every third time.

It learns addition from right answers first, then from a careless teacher, most of whose answers are off by a slip of a
digit or a carry. So it can add, and mostly does not: what is left for reinforcement learning to bring out.

python examples/reasoning/pretrain_tiny.py FOLDER          (about five minutes on one core)
"""

import sys

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from m2flow.data.arithmetic import problems, question

SPECIAL = ["<pad>", "<eos>", "<unk>"]
SLIPS = np.array([-100, -20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20, 100])
CONTEXT = 256
STEPS, CARELESS_FROM, RIGHT_SHARE = 1600, 1200, 0.4


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
    model: LlamaForCausalLM, texts: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast
) -> torch.Tensor:
    """[texts, tokens]: minus the log-probability of each token of the answers and their ends; 0 elsewhere."""
    ids = tokenizer([q + a + "<eos>" for q, a in texts], padding=True, return_tensors="pt")["input_ids"]
    places = torch.arange(ids.shape[1])
    start = torch.tensor([[len(q)] for q, _ in texts])
    end = torch.tensor([[len(q + a)] for q, a in texts])
    labels = torch.where((places >= start) & (places <= end), ids, -100)
    logits = model(ids, use_cache=False).logits[:, :-1]
    return cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none")


def answer(a: int, b: int, rng: np.random.Generator, right_share: float) -> str:
    """What the teacher says."""
    slip = 0 if rng.random() < right_share else int(rng.choice(SLIPS[SLIPS + a + b >= 0]))
    return str(a + b + slip)


def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """Probability of the right answer, sampled at temperature 1: the mean over all held-out problems."""
    with torch.no_grad():
        losses = token_losses(model, [(question(a, b), str(a + b)) for a, b in problems("held_out")], tokenizer)
    return torch.exp(-losses.sum(1)).mean().item()


def main(folder: str) -> None:
    """Train, print the accuracy as it grows, save."""
    torch.manual_seed(0)
    rng, train, tokenizer = np.random.default_rng(0), problems("train"), make_tokenizer()
    model = make_model(len(tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 100, 2 * (STEPS - step) / STEPS)
        share = 1.0 if step < CARELESS_FROM else RIGHT_SHARE
        terms = [train[i] for i in rng.integers(len(train), size=256)]
        losses = token_losses(model, [(question(a, b), answer(a, b, rng, share)) for a, b in terms], tokenizer)
        loss = losses.sum() / (losses != 0).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(
                f"step {step + 1}: loss {loss.item():.3f}, held-out accuracy {accuracy(model, tokenizer):.3f}",
                flush=True,
            )
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
