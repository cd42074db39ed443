# SPDX-License-Identifier: Apache-2.0
"""What test_fsdp runs in processes of its own: the same updates on one, two and four ranks."""

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from m2flow.algorithms.base import Algorithm, Batch, Loss, Outputs, Totals
from m2flow.checkpoint.snapshots import restore, snapshot
from m2flow.checkpoint.store import Store
from m2flow.config import Config
from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.base import SamplingConfig
from m2flow.errors import LearnerError
from m2flow.flow import rank_state
from m2flow.flow.learner import Learner
from m2flow.policies.language.attention import registered
from m2flow.policies.llm import Llm
from m2flow.trainers.sharding.ranks import join, leave

NUM_RANKS = (4, 2, 1)
UNEVEN = ((4, [6, 3, 8]), (5, [7, 7]), (30, [2, 60]), (6, [5, 9, 1, 40]))
THREE = ((9, [20, 2]), (3, [4, 3, 11]), (14, [31]))
"""Fewer micro-batches than four ranks."""


class Poisoned(Algorithm):
    """Its loss is no number where a reward is 7."""

    class Config(Config):
        """No options."""

    needs = frozenset({"old_logprobs"})
    loss_only = needs

    def advantages(self, batch: Batch) -> Batch:
        """The reward."""
        return replace(batch, advantages=torch.where(batch.mask, batch.rewards[:, None], 0.0))

    def loss(self, batch: Batch, outputs: Outputs, *, totals: Totals) -> Loss:
        """Log-probs times rewards."""
        assert batch.advantages is not None
        factor = torch.where(batch.advantages == 7, torch.nan, batch.advantages)
        return Loss(policy=-(torch.where(batch.mask, outputs.logprobs, 0.0) * factor).sum() / totals.num_tokens)


class Untied(Llm):
    """A Llama whose output projection is a weight of its own."""

    @property
    def module(self) -> Any:
        """Made in memory."""
        if "_module" not in vars(self):
            torch.manual_seed(0)
            options = LlamaConfig(
                vocab_size=41,
                hidden_size=16,
                intermediate_size=24,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                initializer_range=0.3,
                tie_word_embeddings=False,
            )
            self._module, self._adapter = LlamaForCausalLM(options).eval(), None
            self._module.set_attn_implementation(registered())
        return self._module


CASES: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo", "trainer": {"epochs": 2, "minibatches": 2}, "updates": 2},
    "one micro-batch a rank or none, checkpointed, reduced at once, unclipped": {
        "algorithm": {"name": "grpo", "kl_coef": 0.1},
        "shapes": THREE,
        "trainer": {"activation_checkpointing": True, "max_grad_norm": 0.0},
        "sharded": {"microbatch_multiple": 1, "reduce_every_microbatch": True},
    },
    "ppo with a critic, nothing resharded early": {
        "algorithm": "ppo",
        "trainer": {"epochs": 2, "weight_decay": 0.1},
        "sharded": {"reshard_after_forward": False, "reshard_after_backward": False},
    },
    "adapters, and the base model as reference": {
        "algorithm": {"name": "grpo", "kl_coef": 0.1},
        "policy": {"lora": {"rank": 2, "alpha": 4.0}},
        "sharded": {"reshard_after_forward": False},
        "updates": 2,
    },
    "untied": {
        "algorithm": {"name": "ppo", "target_kl": 1e-7},
        "untied": True,
        "rewards": (1, 0),
        "trainer": {"epochs": 3},
    },
    "poisoned": {"algorithm": Poisoned.Config(), "rewards": (1, 7), "trainer": {"skip_nonfinite_steps": True}},
}


def make_groups(shapes: Any = UNEVEN, rewards: tuple[int, ...] = (0, 1), seed: int = 0) -> list[Group]:
    """Random texts of these (prompt, responses) lengths; rewards take turns."""
    rng = np.random.default_rng(seed)

    def sample(index: int, length: int) -> Sample:
        logprobs = -rng.exponential(size=length).astype(np.float32)
        return Sample(
            index=index,
            token_ids=rng.integers(0, 41, length),
            logprobs=logprobs,
            sampled_logprobs=logprobs,
            entropies=-logprobs,
            versions=np.zeros(length, np.int32),
            text="",
            finish_reason="stop",
            reward=float(rewards[index % len(rewards)]),
        )

    return [
        Group(
            prompt=Prompt(id=f"p{i}", text="?"),
            prompt_ids=rng.integers(0, 41, prompt),
            samples=[sample(k, length) for k, length in enumerate(lengths)],
        )
        for i, (prompt, lengths) in enumerate(shapes)
    ]


def make_learner(case: Mapping[str, Any], trainer: str) -> Any:
    """For one of ``CASES``."""
    policy = (Untied if case.get("untied") else Llm)(Llm.Config(**case.get("policy", {})))
    options = {"learning_rate": 1e-4, "max_tokens_per_microbatch": 100, **case.get("trainer", {})}
    if trainer == "fsdp":
        options |= {"microbatch_multiple": 4, **case.get("sharded", {})}
    sampling = SamplingConfig(max_new_tokens=64)
    return Learner(policy, algorithm=case["algorithm"], trainer={"name": trainer, **options}, sampling=sampling)


def run_case(case: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Metrics of the updates, the gradients of the first step (this rank's rows), and the weights after all."""
    learner = make_learner(case, trainer)
    gradients: dict[str, Tensor] = {}
    _watch(learner, "step", lambda _: gradients or gradients.update(_gradients(learner)))
    groups = {k: case[k] for k in ("shapes", "rewards") if k in case}
    metrics = [learner.update(make_groups(**groups, seed=seed)) for seed in range(case.get("updates", 1))]
    weights = dict(learner.trainer.gathered(learner.policy.state()))
    return {"metrics": metrics, "gradients": gradients, "weights": weights}


def _watch(learner: Any, method: str, see: Callable[..., Any]) -> None:
    """Call ``see`` before each call of the optimizer's ``method``."""
    _ = learner.models
    original = getattr(learner.trainer.optimizer, method)
    setattr(learner.trainer.optimizer, method, lambda *given: (see(*given), original(*given))[1])


def _gradients(learner: Any) -> dict[str, Tensor]:
    parts = learner.trainer.optimizer.parameters.items()
    return {f"{part}.{k}": p.grad.clone() for part, named in parts for k, p in named.items() if p.grad is not None}


SAVED = {
    "algorithm": {"name": "ppo"},
    "trainer": {"minibatches": 2, "schedule": {"shape": "linear", "total_steps": 50}},
    "sharded": {"microbatch_multiple": 1},
}


def next_update(learner: Any) -> dict[str, Any]:
    """Metrics of one update, and the sums of its first step."""
    first: list[dict[str, float]] = []
    gradients = learner.trainer._gradients

    def watched(*given: Any, **options: Any) -> dict[str, float]:
        first.append(gradients(*given, **options))
        return first[-1]

    learner.trainer._gradients = watched
    metrics = learner.update(make_groups(seed=1))
    return {"next": metrics, "first": {k: v for k, v in first[0].items() if k != "learner/balance"}}


def save(rank: int, folder: Path) -> dict[str, Any]:
    """One update, a checkpoint in parts, another update."""
    learner, store = make_learner(SAVED, "fsdp"), Store(folder / "checkpoints", keep=2)
    learner.update(make_groups())
    torch.manual_seed(rank)
    place = learner.trainer.ranks.gather(str(store.begin(3)) if rank == 0 else None)[0]
    part = rank_state.save(learner, Path(place), name="learner", rank=rank)
    parts = learner.trainer.ranks.gather([part.name, part.files])
    seen = [store.steps()]
    if rank == 0:
        store.finish(Path(place), 3, state={"iteration": 3}, parts=[type(part)(*given) for given in parts])
        store.wait()
    seen.append(learner.trainer.ranks.gather(store.steps())[0])
    return {"steps": seen, "random": torch.rand(3), **next_update(learner)}


def load(trainer: str, folder: Path, *, rank: int = 0, num_ranks: int = 1) -> dict[str, Any]:
    """The update that follows the checkpoint."""
    learner = make_learner(SAVED, trainer)
    parts = Store(folder / "checkpoints", keep=2).parts(3)
    rank_state.load(learner, parts, name="learner", rank=rank, num_ranks=num_ranks)
    return {"random": torch.rand(3), **next_update(learner)}


def load_whole(state: Any) -> dict[str, Any]:
    """The update that follows a state of ``local``."""
    learner = make_learner(SAVED, "fsdp")
    learner.load_state(state)
    return next_update(learner)


def copied(state: Any) -> Any:
    """``state`` with tensors of its own."""
    return restore(snapshot(state))


def refuse() -> str:
    """What is said of a loss that is no number."""
    case = {**CASES["poisoned"], "trainer": {}}
    try:
        make_learner(case, "fsdp").update(make_groups(((4, [3, 3]), (5, [2, 4])), rewards=(1, 7)))
    except LearnerError as error:
        return str(error)
    return "nothing"


def work(rank: int, folder: Path, *, given: Any) -> dict[Any, Any]:
    """One process's life: part of four ranks, of two, and one alone, as long as its rank is among them."""
    found: dict[Any, Any] = {}
    for num_ranks in [number for number in NUM_RANKS if rank < number]:
        join(rank, num_ranks, init_method=f"file://{folder}/meet-{num_ranks}", timeout_s=120)
        at = num_ranks, rank
        found |= {(*at, name): run_case(case, "fsdp") for name, case in CASES.items()}
        if num_ranks == max(NUM_RANKS):
            found[*at, "saved"] = save(rank, folder)
            found[*at, "whole"] = load_whole(given)
            found[*at, "refused"] = refuse()
        found[*at, "loaded"] = load("fsdp", folder, rank=rank, num_ranks=num_ranks)
        leave()
    return found


def start(folder: Path, given: Any) -> list[Any]:
    """The processes; each leaves in ``folder``, under its rank, what it found by number of ranks, rank and name."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    torch.save(given, folder / "given")
    processes = [context.Process(target=_work, args=(rank, folder)) for rank in range(max(NUM_RANKS))]
    for process in processes:
        process.start()
    return processes


def _work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.save(work(rank, folder, given=torch.load(folder / "given")), folder / str(rank))
