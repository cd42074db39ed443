# SPDX-License-Identifier: Apache-2.0
"""Make the model that ships with m2flow: it can add two numbers below 100, and does so about every third time.

It learns addition from right answers first, then from a careless teacher, most of whose answers are off by a slip of a
digit or a carry. So it can add, and mostly does not: what is left for reinforcement learning to bring out.

python examples/reasoning/pretrain_tiny.py FOLDER          (about five minutes on one core)
"""

import sys

import numpy as np
import torch
from tiny_model import make_model, make_tokenizer, token_losses
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from m2flow.data.arithmetic import problems, question

SLIPS = np.array([-100, -20, -11, -10, -9, -2, -1, 1, 2, 9, 10, 11, 20, 100])
STEPS, CARELESS_FROM, RIGHT_SHARE = 1600, 1200, 0.4


def answer(a: int, b: int, *, rng: np.random.Generator, right_share: float) -> str:
    """What the teacher says."""
    slip = 0 if rng.random() < right_share else int(rng.choice(SLIPS[SLIPS + a + b >= 0]))
    return str(a + b + slip)


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    """Probability of the right answer, sampled at temperature 1: the mean over all held-out problems."""
    losses = token_losses(model, [(question(a, b), str(a + b)) for a, b in problems("held_out")], tokenizer=tokenizer)
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
        pairs = [(question(a, b), answer(a, b, rng=rng, right_share=share)) for a, b in terms]
        losses = token_losses(model, pairs, tokenizer=tokenizer)
        loss = losses.sum() / (losses != 0).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}, held-out {accuracy(model, tokenizer):.3f}", flush=True)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
