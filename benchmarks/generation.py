# SPDX-License-Identifier: Apache-2.0
"""The hf engine against transformers' own generate, in turn, and both against the matrix-product limit of the machine.

python benchmarks/generation.py [--model smollm2] [--lengths lognormal] [--rounds 3] [--threads 2] [--profile]

Both have the same weights and prompts, and responses of the same lengths; that they make the same tokens when greedy
is checked first. The limit counts 2 operations per weight of the body and token, and 2 per weight of the head and
predicted token, at the rate of a large product. Time is process CPU time, so that other work on the machine does not
count.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, StoppingCriteria

from m2flow.data.samples import Group, Prompt
from m2flow.engines import hf
from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding.cohort import Cohort
from m2flow.engines.decoding.stopping import Stopping
from m2flow.policies.llm import Llm

NUM_PROMPTS, NUM_SAMPLES, LONGEST = 8, 8, 64
PROMPTS = [Prompt(id=str(number), text="random") for number in range(NUM_PROMPTS)]


class Random(Llm):
    """A policy that turns every prompt into 52 to 68 random tokens."""

    def encode(self, prompt: Prompt) -> Int[np.ndarray, "P"]:
        """Tokens drawn by the prompt's id."""
        rng = np.random.default_rng(int(prompt.id))
        return rng.integers(20, self.head_weight.shape[0], rng.integers(52, 69))


def response_lengths(kind: str) -> Int[np.ndarray, "prompts samples"]:
    """All 64 tokens, or log-normal with median 24, at most 64."""
    shape = (NUM_PROMPTS, NUM_SAMPLES)
    if kind == "full":
        return np.full(shape, LONGEST)
    return np.clip(np.random.default_rng(0).lognormal(np.log(24), 0.7, shape).astype(int), 1, LONGEST)


class Ours:
    """The engine; responses end after the lengths that are given."""

    def __init__(self, policy: Llm, lengths: Int[np.ndarray, "prompts samples"]) -> None:
        class Planned(Cohort):
            """Ends its responses by plan, not by their tokens."""

            def ended(self, stopping: Stopping) -> Bool[np.ndarray, "rows"]:
                """Those whose length is reached."""
                number = [int(self.lanes[lane].pending.prompt.id) for lane in self.lane_of_row]
                return lengths[number, self._columns["index"]] <= self.num_made

        hf.Cohort = Planned  # pyright: ignore[reportAttributeAccessIssue]
        self.engine = hf.Hf(hf.Hf.Config(), policy)

    def generate(self, sampling: SamplingConfig) -> list[list[list[int]]]:
        """Tokens of each sample of each prompt."""
        groups = self.engine.generate(PROMPTS, samples_per_prompt=NUM_SAMPLES, sampling=sampling, seed=0, iteration=0)
        ordered: list[Group] = sorted(groups, key=lambda group: int(group.prompt.id))
        return [[sample.token_ids.tolist() for sample in group.samples] for group in ordered]


class Reached(StoppingCriteria):
    """Ends each row after its own number of tokens."""

    def __init__(self, ends: Int[torch.Tensor, "rows"]) -> None:
        self.ends = ends

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Which rows end."""
        return input_ids.shape[1] >= self.ends


class Theirs:
    """``generate`` of transformers: every sample a row with its prompt, padded on the left, until the last one ends."""

    def __init__(self, policy: Llm, lengths: Int[np.ndarray, "prompts samples"]) -> None:
        auto: Any = AutoModelForCausalLM
        self.module = auto.from_pretrained(policy.folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        self.lengths = lengths
        prompts = [torch.from_numpy(policy.encode(prompt)) for prompt in PROMPTS]
        self.longest = max(len(prompt) for prompt in prompts)
        padded = [functional.pad(prompt, (self.longest - len(prompt), 0), value=-1) for prompt in prompts]
        self.rows = torch.stack(padded).repeat_interleave(NUM_SAMPLES, 0)

    def generate(self, sampling: SamplingConfig) -> list[list[list[int]]]:
        """Tokens of each sample of each prompt."""
        options = {"do_sample": False}
        if sampling.temperature:
            options = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        out = self.module.generate(
            self.rows.clamp(min=0),
            attention_mask=(self.rows >= 0).long(),
            max_new_tokens=int(self.lengths.max()),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[Reached(self.longest + torch.from_numpy(self.lengths.flatten()))],
            **options,
        )
        flat = [row[:n].tolist() for row, n in zip(out[:, self.longest :], self.lengths.flatten(), strict=True)]
        return [flat[i : i + NUM_SAMPLES] for i in range(0, len(flat), NUM_SAMPLES)]


def operations(policy: Llm, lengths: Int[np.ndarray, "prompts samples"]) -> float:
    """Floating-point operations that the tokens take at least, attention aside."""
    head = policy.head_weight.numel()
    body = sum(weight.numel() for weight in policy.module.parameters() if weight.dim() > 1) - head
    further = (lengths - 1).sum()
    return 2.0 * (body * (sum(len(policy.encode(p)) for p in PROMPTS) + further) + head * (NUM_PROMPTS + further))


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Processor time of one call, of all threads."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def matmul_rate() -> float:
    """Measured operations per CPU-second of a large float32 matrix product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    a @ b
    return 10 * 2 * 2048**3 / cpu_seconds(lambda: [a @ b for _ in range(10)])


@torch.inference_mode()
def products_seconds(policy: Llm, rows: int) -> float:
    """CPU-seconds of the products of one step with so many rows, each weight read from memory, and nothing else."""
    layers = [part for part in policy.module.modules() if isinstance(part, nn.Linear)]
    inputs = {size: torch.randn(rows, size) for size in {layer.in_features for layer in layers}}

    def step() -> None:
        for layer in layers:
            layer(inputs[layer.in_features])

    step()
    return min(cpu_seconds(step) for _ in range(3))


def require_same(ours: Ours, theirs: Theirs) -> None:
    """Greedy, both make the same tokens; 64 rows round otherwise than one, so a near tie may part two responses."""
    greedy = SamplingConfig(max_new_tokens=LONGEST, temperature=0)
    one, other = ([row for group in who.generate(greedy) for row in group] for who in (ours, theirs))
    same = sum(a == b for a, b in zip(one, other, strict=True))
    print(f"greedy: {same} of {len(one)} responses are equal token by token")
    if same < 0.9 * len(one):
        raise SystemExit("the two do not make the same tokens")


def main() -> None:
    """Print tokens per CPU-second of both, their ratio, and the share of the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lengths", choices=["full", "lognormal"], default="full")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also print where the engine's time goes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    policy, lengths = Random(Llm.Config(model=options.model)), response_lengths(options.lengths)
    ours, theirs = Ours(policy, lengths), Theirs(policy, lengths)
    require_same(ours, theirs)
    compare(policy, ours, theirs=theirs, rounds=options.rounds)
    if options.profile:
        with torch.profiler.profile() as profile:
            ours.generate(SamplingConfig(max_new_tokens=LONGEST))
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))


def compare(policy: Llm, ours: Ours, *, theirs: Theirs, rounds: int) -> None:
    """Both in turn, ``rounds`` times."""
    sampling, tokens = SamplingConfig(max_new_tokens=LONGEST), int(theirs.lengths.sum())
    needed = operations(policy, theirs.lengths)
    for _ in range(rounds):
        rate = matmul_rate()
        one, other = (cpu_seconds(lambda who=who: who.generate(sampling)) for who in (ours, theirs))
        print(
            f"{tokens} tokens   ours {one:.2f} CPU-s, {tokens / one:.0f} a CPU-s   transformers {other:.2f} CPU-s, "
            f"{tokens / other:.0f} a CPU-s   ratio {other / one:.2f}   limit {needed / rate:.2f} CPU-s "
            f"at {rate / 1e9:.0f} Gflop/s   {needed / rate / one:.0%} of it"
        )
    steps = ", ".join(f"{rows}: {1e3 * products_seconds(policy, rows):.0f} ms" for rows in (8, 32, 64, 128))
    print(f"products of one step alone, by rows, weights read from memory: {steps}")
    print(f"peak memory, both together: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
