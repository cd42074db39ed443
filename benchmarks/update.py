# SPDX-License-Identifier: Apache-2.0
"""One update of a 135M-parameter Llama (the shape of SmolLM2) against the matrix-product limit of the machine.

python benchmarks/update.py [--responses lognormal] [--microbatch 1024] [--checkpointing] [--threads 2] [--profile]

Operations and rate are those of limit.py. Time is process CPU time, so that other work on the machine does not count.
"""

import argparse
import resource
from functools import cached_property
from typing import Any

import numpy as np
import torch
from limit import Model, matmul_rate, spent
from transformers import LlamaConfig, LlamaForCausalLM

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.flow.learner import Learner
from m2flow.policies.language import attention
from m2flow.policies.llm import Llm

SHAPE = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
)


class Untrained(Llm):
    """The shape with random weights, made in memory."""

    @cached_property
    def module(self) -> Any:
        """A Llama that no file holds."""
        torch.manual_seed(0)
        module = LlamaForCausalLM(SHAPE).eval()
        module.set_attn_implementation(attention.registered())
        self._adapter = None
        return module


def make_groups(kind: str, rng: np.random.Generator) -> list[Group]:
    """8 prompts of about 60 tokens with 8 responses: all 64 tokens, or of log-normal length, median 24, at most 64."""
    groups = []
    for i in range(8):
        lengths = [64] * 8 if kind == "full" else np.clip(rng.lognormal(np.log(24), 0.7, 8).astype(int), 1, 64)
        samples = [make_sample(k, int(n), rng=rng) for k, n in enumerate(lengths)]
        prompt_ids = rng.integers(0, SHAPE.vocab_size, int(rng.integers(52, 69)))
        groups.append(Group(prompt=Prompt(id=str(i), text="?"), prompt_ids=prompt_ids, samples=samples))
    return groups


def make_sample(index: int, length: int, *, rng: np.random.Generator) -> Sample:
    """Random tokens with about the log-probs that an untrained model gives them."""
    logprobs = np.full(length, -np.log(SHAPE.vocab_size), np.float32)
    return Sample(
        index=index,
        token_ids=rng.integers(0, SHAPE.vocab_size, length),
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        entropies=-logprobs,
        versions=np.zeros(length, np.int32),
        text="",
        finish_reason="stop",
        reward=float(index % 2),
    )


def main() -> None:
    """Print time against the limit, and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", choices=["full", "lognormal"], default="full")
    parser.add_argument("--microbatch", type=int, default=1024, help="packed tokens at most")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--updates", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="also print where the time of one more update goes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    groups = make_groups(options.responses, np.random.default_rng(0))
    trainer = {
        "name": "local",
        "max_tokens_per_microbatch": options.microbatch,
        "activation_checkpointing": options.checkpointing,
    }
    learner = Learner(Untrained(), algorithm=options.algorithm, trainer=trainer)
    shapes = [
        (len(group.prompt_ids), np.array([len(sample.token_ids) for sample in group.samples])) for group in groups
    ]
    needed = Model.of(learner.policy.module).update(shapes)
    learner.update(groups)
    for _ in range(options.updates):
        rate, took = matmul_rate(), spent(lambda: learner.update(groups))
        print(
            f"update {took.cpu_s:.1f} CPU-s ({took.wall_s:.1f} s)   limit {needed / rate:.1f} CPU-s "
            f"({needed / 1e12:.2f} Tflop at {rate / 1e9:.0f} Gflop/s)   {needed / rate / took.cpu_s:.0%} of the limit"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if options.profile:
        with torch.profiler.profile() as profile:
            learner.update(groups)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=60))


if __name__ == "__main__":
    main()
