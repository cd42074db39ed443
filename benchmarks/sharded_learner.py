# SPDX-License-Identifier: Apache-2.0
"""The trainer fsdp on several ranks against the trainer local: are results the same, and what does it take?

python benchmarks/sharded_learner.py [--ranks 1 2 4] [--updates 2]

First, for each way to train, the largest differences from one process, in float32: of losses and of gradient norms over
all steps (relative), of the first step's gradient (relative to its largest entry) and of the weights in the end
(absolute). Then a checkpoint saved by the largest number of ranks goes on at the others and in one process. Last, how
often ranks talk to each other, and their CPU time, by the options that trade it for memory. The ranks are processes on
this machine's cores that talk by gloo: time says what is overhead, not what more machines would gain.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from m2flow.checkpoint import record
from m2flow.checkpoint.store import Store
from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.flow import rank_state
from m2flow.flow.learner import Learner
from m2flow.policies.llm import Llm
from m2flow.trainers.sharding import ranks

KL = {"name": "grpo", "kl_coef": 0.1}
WAYS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "grpo, 2 epochs x 2 mini-batches": {"algorithm": "grpo", "trainer": {"epochs": 2, "minibatches": 2}},
    "grpo with KL reference": {"algorithm": KL},
    "grpo with KL reference, LoRA": {"algorithm": KL, "policy": {"lora": {"rank": 4, "alpha": 8.0}}},
    "ppo, 2 epochs": {"algorithm": "ppo", "trainer": {"epochs": 2}},
    "ppo, activation checkpointing": {"algorithm": "ppo", "trainer": {"activation_checkpointing": True}},
    "grpo, 3 groups in one micro-batch": {"algorithm": "grpo", "groups": 3, "fsdp": {"microbatch_multiple": 1}},
}
TRADES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "gradients added up after each micro-batch": {"reduce_every_microbatch": True},
    "whole weights kept from forward to backward": {"reshard_after_forward": False},
    "whole weights kept for a step": {"reshard_after_forward": False, "reshard_after_backward": False},
}


def make_groups(num: int, seed: int) -> list[Group]:
    """``num`` prompts with 4 responses each, of log-normal length, median 12, at most 60 tokens."""
    rng = np.random.default_rng(seed)
    return [
        Group(
            prompt=Prompt(id=str(i), text="?"),
            prompt_ids=rng.integers(2, 99, int(rng.integers(5, 40))),
            samples=[make_sample(k, rng) for k in range(4)],
        )
        for i in range(num)
    ]


def make_sample(index: int, rng: np.random.Generator) -> Sample:
    """Random tokens with random log-probs; rewards of 0 and 1 take turns."""
    length = int(np.clip(rng.lognormal(np.log(12), 0.8), 1, 60))
    logprobs = -rng.exponential(size=length).astype(np.float32)
    return Sample(
        index=index,
        token_ids=rng.integers(2, 99, length),
        logprobs=logprobs,
        sampled_logprobs=logprobs,
        entropies=-logprobs,
        versions=np.zeros(length, np.int32),
        text="",
        finish_reason="stop",
        reward=float(index % 2),
    )


def make_learner(way: Mapping[str, Any], trainer: str, **options: Any) -> Any:
    """The tiny model, trained in one of ``WAYS``."""
    given = {"learning_rate": 1e-4, "max_tokens_per_microbatch": 400, **way.get("trainer", {}), **options}
    given |= way.get("fsdp", {}) if trainer == "fsdp" else {}
    sampling = SamplingConfig(max_new_tokens=60)
    policy = Llm(Llm.Config(model="tiny", **way.get("policy", {})))
    return Learner(policy, algorithm=way["algorithm"], trainer={"name": trainer, **given}, sampling=sampling)


def outcome(way: Mapping[str, Any], trainer: str, *, updates: int) -> dict[str, Any]:
    """Metrics of each update, the first step's gradient (this rank's rows) and the weights in the end."""
    learner = make_learner(way, trainer)
    _ = learner.models
    optimizer, gradient = learner.trainer.optimizer, {}
    step = optimizer.step

    def watched(rates: Any) -> None:
        for part, named in optimizer.parameters.items() if not gradient else ():
            gradient.update({f"{part}.{k}": p.grad.clone() for k, p in named.items() if p.grad is not None})
        step(rates)

    optimizer.step = watched
    metrics = [learner.update(make_groups(way.get("groups", 8), seed)) for seed in range(updates)]
    return {"metrics": metrics, "gradient": gradient, "weights": dict(learner.trainer.gathered(learner.policy.state()))}


def differences(ours: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> str:
    """One line of the first table; ``ours`` by rank."""
    pairs = list(zip(ours[0]["metrics"], wanted["metrics"], strict=True))

    def furthest(end: str) -> float:
        return max(abs(a[k] - b[k]) / max(abs(b[k]), 1e-3) for a, b in pairs for k in b if k.endswith(end))

    whole = {k: torch.cat([rank["gradient"][k] for rank in ours]) for k in wanted["gradient"]}
    scale = max(float(g.abs().max()) for g in wanted["gradient"].values())
    gradient = _apart(whole, wanted["gradient"]) / scale
    weights = _apart(ours[0]["weights"], wanted["weights"])
    return f"{furthest('/loss'):10.1e} {furthest('/grad_norm'):10.1e} {gradient:10.1e} {weights:10.1e}"


def _apart(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    return max(float((ours[k] - v).abs().max()) for k, v in wanted.items())


def save(folder: Path) -> dict[str, float]:
    """A checkpoint after one update, in parts; the metrics of the next."""
    learner = make_learner(WAYS["ppo, 2 epochs"], "fsdp", microbatch_multiple=1)
    learner.update(make_groups(8, 0))
    own, store = learner.trainer.ranks, Store(folder, keep=1)
    place = Path(own.gather(str(store.begin(1)) if own.rank == 0 else None)[0])
    part = rank_state.save(learner, place, name="learner", rank=own.rank)
    parts = own.gather([part.name, part.files])
    if own.rank == 0:
        store.finish(place, 1, state={}, parts=[record.Part(*given) for given in parts])
        store.wait()
    return learner.update(make_groups(8, 1))


def go_on(folder: Path, trainer: str, *, rank: int = 0, num_ranks: int = 1) -> dict[str, float]:
    """The metrics of the update after the checkpoint."""
    options = {"microbatch_multiple": 1} if trainer == "fsdp" else {}
    learner = make_learner(WAYS["ppo, 2 epochs"], trainer, **options)
    rank_state.load(learner, Store(folder, keep=1).parts(1), name="learner", rank=rank, num_ranks=num_ranks)
    return learner.update(make_groups(8, 1))


class Collectives(TorchDispatchMode):
    """Counts them, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func.overloadpacket.__name__.strip("_")] += 1
        return func(*args, **(kwargs or {}))


def cost(options: Mapping[str, Any]) -> dict[str, float]:
    """Collectives of one update with 16 micro-batches and one step, and CPU seconds of the next two."""
    learner = make_learner(WAYS["grpo"], "fsdp", microbatch_multiple=16, **options)
    learner.update(make_groups(16, 0))
    with Collectives() as seen:
        learner.update(make_groups(16, 1))
    begin = time.process_time()
    for seed in (2, 3):
        learner.update(make_groups(16, seed))
    return {**seen.counts, "CPU-s an update": round((time.process_time() - begin) / 2, 2)}


def _rank(rank: int, num_ranks: int, *, folder: Path, options: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    ranks.join(rank, num_ranks, init_method=f"file://{folder}/meet-{num_ranks}")
    found: dict[str, Any] = {name: outcome(way, "fsdp", updates=options["updates"]) for name, way in WAYS.items()}
    if num_ranks == max(options["ranks"]):
        found["saved"] = save(folder / "checkpoints")
    found["loaded"] = go_on(folder / "checkpoints", "fsdp", rank=rank, num_ranks=num_ranks)
    found["cost"] = {name: cost(trade) for name, trade in TRADES.items()}
    torch.save(found, folder / f"{num_ranks}-{rank}")
    ranks.leave()


def run_ranks(num_ranks: int, folder: Path, *, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each of so many processes found."""
    context = multiprocessing.get_context("spawn")
    given = {"folder": folder, "options": options}
    made = [context.Process(target=_rank, args=(rank, num_ranks), kwargs=given) for rank in range(num_ranks)]
    for process in made:
        process.start()
    for process in made:
        process.join()
    return [torch.load(folder / f"{num_ranks}-{rank}", weights_only=False) for rank in range(num_ranks)]


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--updates", type=int, default=2)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    alone = {name: outcome(way, "local", updates=options["updates"]) for name, way in WAYS.items()}
    with tempfile.TemporaryDirectory() as made:
        numbers = sorted(options["ranks"], reverse=True)
        found = {number: run_ranks(number, Path(made), options=options) for number in numbers}
        resumed = go_on(Path(made) / "checkpoints", "local")
    print(f"{'difference from one process':42} ranks       loss  grad norm   gradient    weights")
    for name in WAYS:
        for number, ours in found.items():
            print(f"{name:42} {number:5d} {differences([rank[name] for rank in ours], alone[name])}")
    saved = found[numbers[0]][0]["saved"]
    print(
        f"\nupdate after a checkpoint of {numbers[0]} ranks (ppo, 2 steps): largest difference of a metric from theirs"
    )
    for where, metrics in {**{f"{n} ranks": ours[0]["loaded"] for n, ours in found.items()}, "local": resumed}.items():
        shown = {k: abs(metrics[k] - v) for k, v in saved.items() if k in metrics and k != "learner/balance"}
        print(f"{where:10} {max(shown.values()):10.1e}   log-probs before the first step {shown['rollout/kl']:.1e}")
    print("\ncollectives of one update, one step of 16 micro-batches, a model of 3 layers")
    for name in TRADES:
        for number, ours in found.items():
            print(f"{name:45} {number} ranks   {ours[0]['cost'][name]}")


if __name__ == "__main__":
    main()
