# SPDX-License-Identifier: Apache-2.0
"""One step of GRPO with SmolLM2-135M against TRL's GRPOTrainer: equal first, then timed in turn.

python benchmarks/grpo_vs_trl.py [--lengths lognormal] [--steps 2] [--microbatch 8] [--gradient-checkpointing]

8 prompts of about 60 tokens, 8 samples each of up to 64 tokens, float32, one thread. Both have the same weights,
prompts, rewards and planned lengths of responses. First, in a process of its own, both compute the update of the same
samples, and log-probs, loss and gradient must agree. Then each runs in a process of its own (so that peak memory is its
own), one step at a time, by turns. Generation and update are set beside the limit of the machine's matrix products.
TRL keeps its defaults but for float32; ``--microbatch`` and ``--gradient-checkpointing`` are its settings.
"""

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from limit import Model, Spent, decoding_cpu_s, matmul_rate, spent
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trl_side import LONGEST, NUM_SAMPLES, PROMPTS, Theirs, planned_lengths, reward

from m2flow.data.samples import Group, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.engines.decoding.cohort import Cohort
from m2flow.engines.decoding.stopping import Stopping
from m2flow.engines.hf import Hf
from m2flow.flow.learner import Learner
from m2flow.policies.llm import Llm
from m2flow.trainers.packing.texts import token_logprobs

MAX_RELATIVE_GRADIENT, MAX_LOGPROB, MAX_LOSS = 1e-3, 1e-4, 1e-6
"""How far the two may be apart: norm of the gradients' difference over the norm, log-probs and loss absolutely.

A gradient in float32 is a sum of terms that mostly cancel (advantages add up to 0), which leaves it four digits.
"""


@dataclass(frozen=True)
class Step:
    """What one step took."""

    generating: Spent
    whole: Spent
    """Generation, rewards and update."""
    num_tokens: int
    """Of responses."""
    peak_gib: float
    """Of the process until now."""
    matmul_rate: float
    """Operations per CPU-second, just before the step."""

    @property
    def rest_cpu_s(self) -> float:
        """All but generation."""
        return self.whole.cpu_s - self.generating.cpu_s

    def describe(self) -> str:
        """One line."""
        return (
            f"{self.num_tokens} tokens, generation {self.generating.cpu_s:.1f} + rest {self.rest_cpu_s:.1f} = "
            f"{self.whole.cpu_s:.1f} CPU-s ({self.whole.wall_s:.1f} s), {self.num_tokens / self.whole.cpu_s:.0f} "
            f"tokens per CPU-s, peak {self.peak_gib:.2f} GiB, products at {self.matmul_rate / 1e9:.0f} Gflop/s"
        )


class Ours:
    """Rollout and learner, as a flow calls them."""

    def __init__(self, options: argparse.Namespace, *, learning_rate: float = 1e-6, max_grad_norm: float = 1.0) -> None:
        self.policy = Llm(Llm.Config(model=options.model))
        self.engine = planned_engine(planned_lengths(options.lengths))(Hf.Config(), self.policy)
        trainer = {"name": "local", "learning_rate": learning_rate, "max_grad_norm": max_grad_norm}
        self.sampling = SamplingConfig(max_new_tokens=LONGEST)
        # TRL's epsilon; both losses are means over all tokens.
        self.learner = Learner(
            self.policy,
            algorithm={"name": "grpo", "std_eps": 1e-4},
            trainer=trainer,
            sampling=self.sampling,
        )

    def generate(self) -> list[Group]:
        """All groups, with rewards."""
        groups = list(
            self.engine.generate(PROMPTS, samples_per_prompt=NUM_SAMPLES, sampling=self.sampling, seed=0, iteration=0)
        )
        for sample in (sample for group in groups for sample in group.samples):
            sample.reward = reward(sample.token_ids.tolist())
        return groups

    def step(self) -> tuple[Spent, int]:
        """Time of its generation, and tokens of its responses."""
        groups: list[Group] = []
        generating = spent(lambda: groups.extend(self.generate()))
        self.learner.update(groups)
        self.engine.load_weights(self.policy)
        return generating, sum(len(sample.token_ids) for group in groups for sample in group.samples)


def planned_engine(lengths: Int[np.ndarray, "prompts samples"]) -> type[Hf]:
    """The engine, but for what ends a response: its planned length, not its tokens."""

    class PlannedCohort(Cohort):
        """A cohort whose rows have lengths."""

        def ended(self, stopping: Stopping) -> Bool[np.ndarray, "rows"]:
            """Rows that have their length."""
            prompts = np.array([int(lane.pending.prompt.id) for lane in self.lanes])
            return lengths[prompts[self.lane_of_row], self.sample_of_row] <= self.num_made

    class PlannedHf(Hf):
        """An engine of such cohorts."""

        cohort_type = PlannedCohort

    return PlannedHf


def peak_gib() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def check(options: argparse.Namespace) -> None:
    """Require that both compute the same update of the samples that TRL makes."""
    with tempfile.TemporaryDirectory() as folder, Gradients() as gradients:
        ours = Ours(options, learning_rate=0.0, max_grad_norm=0.0)
        theirs = Theirs(options, folder=folder, learning_rate=0.0, max_grad_norm=0.0, max_steps=1)
        losses = theirs.losses()
        theirs.run(lambda: None, lambda: None)
        groups = groups_of(ours.policy, theirs.completions)
        metrics = ours.learner.update(groups)
        other, one = (torch.cat([grad.flatten() for grad in grads]) for grads in gradients.seen)
        gap = {
            "scale": float((one @ other) / (other @ other)) - 1,
            "gradient": float((one - other).norm() / other.norm()),
            "loss": abs(metrics["policy/loss"] - sum(losses)),
            "logprob": max_gap(theirs.logprobs(groups), token_logprobs(ours.policy, groups)),
        }
    print(
        "difference between the two, same samples: " + ", ".join(f"{name} {value:.1e}" for name, value in gap.items())
    )
    limits = {"gradient": MAX_RELATIVE_GRADIENT, "loss": MAX_LOSS, "logprob": MAX_LOGPROB}
    if not (other.norm() > 0 and all(gap[name] <= limit for name, limit in limits.items())):
        raise SystemExit(f"the two do not compute the same update: more than {limits}, or no gradient")


class Gradients:
    """Keeps the gradients of every optimizer step that is made meanwhile, matrices first."""

    def __init__(self) -> None:
        self.seen: list[list[Tensor]] = []

    def __enter__(self) -> "Gradients":
        self._hook = register_optimizer_step_pre_hook(self._keep)
        return self

    def __exit__(self, *_: Any) -> None:
        self._hook.remove()

    def _keep(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.seen.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])


def groups_of(policy: Llm, completions: Sequence[Sequence[int]]) -> list[Group]:
    """The responses that TRL made, as ours."""
    samples = [
        Sample(
            index=number % NUM_SAMPLES,
            token_ids=np.array(ids, dtype=np.int64),
            logprobs=np.zeros(len(ids), np.float32),
            sampled_logprobs=np.zeros(len(ids), np.float32),
            entropies=np.zeros(len(ids), np.float32),
            versions=np.zeros(len(ids), np.int32),
            text="",
            finish_reason="stop",
            reward=reward(ids),
        )
        for number, ids in enumerate(completions)
    ]
    return [
        Group(prompt=prompt, prompt_ids=policy.encode(prompt), samples=samples[i * NUM_SAMPLES : (i + 1) * NUM_SAMPLES])
        for i, prompt in enumerate(PROMPTS)
    ]


def max_gap(one: Sequence[Sequence[Tensor]], other: Sequence[Sequence[Tensor]]) -> float:
    """Largest difference between two answers of the same shape."""
    pairs = (pair for groups in zip(one, other, strict=True) for pair in zip(*groups, strict=True))
    return max(float((a - b).abs().max()) for a, b in pairs)


def run_ours(options: argparse.Namespace, pipe: Connection) -> None:
    """A process: one step for each message."""
    torch.set_num_threads(options.threads)
    ours = Ours(options)
    for _ in range(options.steps + 1):
        pipe.recv()
        rate, made = matmul_rate(), []
        whole = spent(lambda: made.append(ours.step()))  # noqa: B023
        generating, tokens = made[0]
        pipe.send(Step(generating, whole, num_tokens=tokens, peak_gib=peak_gib(), matmul_rate=rate))


def run_theirs(options: argparse.Namespace, pipe: Connection) -> None:
    """A process: one step for each message."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        theirs, begun = Theirs(options, folder=folder), []

        def begin() -> None:
            pipe.recv()
            begun[:] = matmul_rate(), time.process_time(), time.perf_counter()

        def end() -> None:
            rate, cpu_s, wall_s = begun
            whole = Spent(time.process_time() - cpu_s, time.perf_counter() - wall_s)
            tokens = sum(len(ids) for ids in theirs.completions)
            pipe.send(Step(theirs.generating, whole, num_tokens=tokens, peak_gib=peak_gib(), matmul_rate=rate))

        theirs.run(begin, end)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What the work takes at least."""

    generation: float
    """Operations."""
    update: float
    """Operations."""
    decoding_cpu_s: float
    """CPU time of generation's products alone, prompts aside."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Needs":
        """Counted, and measured now."""
        policy = Llm(Llm.Config(model=options.model))
        groups = [(len(policy.encode(p)), n) for p, n in zip(PROMPTS, planned_lengths(options.lengths), strict=True)]
        model = Model.of(policy.module)
        return cls(
            generation=model.generation(groups),
            update=model.update(groups),
            decoding_cpu_s=decoding_cpu_s(policy.module, groups),
        )


class Side:
    """One of the two in a process of its own, and the steps it has made."""

    def __init__(self, name: str, work: Callable[..., None], *, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self.made: list[Step] = []
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(options, other), daemon=True)
        self._process.start()
        other.close()

    def step(self) -> Step:
        """The next step."""
        self._pipe.send(None)
        step: Step = self._pipe.recv()
        print(f"{self.name}: {step.describe()}", flush=True)
        return step


def compare(options: argparse.Namespace) -> None:
    """Both by turns; the first step of each, which also makes the optimizer's moments, counts only if it is alone."""
    ours, theirs = Side("m2flow", run_ours, options=options), Side("TRL", run_theirs, options=options)
    for _ in range(options.steps + 1):
        for side in (ours, theirs):
            side.made.append(side.step())
    report(ours.made[1:] or ours.made, theirs.made[1:] or theirs.made, needs=Needs.of(options))


def report(ours: Sequence[Step], theirs: Sequence[Step], *, needs: Needs) -> None:
    """Medians, their ratios, and shares of the limit."""

    def median(of: Callable[[Step], float], steps: Sequence[Step]) -> float:
        return statistics.median(of(step) for step in steps)

    def ratio(of: Callable[[Step], float]) -> str:
        return f"{median(of, theirs) / median(of, ours):.2f}"

    print(
        f"TRL over m2flow, medians of {len(ours)}: CPU time {ratio(lambda s: s.whole.cpu_s)} "
        f"(generation {ratio(lambda s: s.generating.cpu_s)}, the rest {ratio(lambda s: s.rest_cpu_s)}), "
        f"wall clock {ratio(lambda s: s.whole.wall_s)}, peak memory {ratio(lambda s: s.peak_gib)}"
    )
    rate = median(lambda s: s.matmul_rate, ours)
    parts = {
        "generation": (needs.generation, lambda s: s.generating.cpu_s),
        "update": (needs.update, lambda s: s.rest_cpu_s),
    }
    for name, (operations, of) in parts.items():
        least, took = operations / rate, median(of, ours)
        print(
            f"m2flow {name}: {took:.1f} CPU-s; limit {least:.1f} CPU-s ({operations / 1e12:.2f} Tflop at "
            f"{rate / 1e9:.0f} Gflop/s); {least / took:.0%} of the limit"
        )
    print(f"generation's decoding products alone, at their numbers of rows: {needs.decoding_cpu_s:.1f} CPU-s")


def main() -> None:
    """Check, then compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lengths", choices=["full", "lognormal"], default="full")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--microbatch", type=int, default=8, help="TRL's per_device_train_batch_size")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="TRL's, on by default there")
    parser.add_argument("--only", choices=["check", "compare"], help="one part alone")
    options = parser.parse_args()
    if options.only != "compare":
        checking = multiprocessing.get_context("spawn").Process(target=check, args=(options,))
        checking.start()
        checking.join()
        if checking.exitcode:
            raise SystemExit("no comparison of things that differ")
    if options.only != "check":
        compare(options)


if __name__ == "__main__":
    main()
