# SPDX-License-Identifier: Apache-2.0
"""What both sides of grpo_vs_trl.py do, and TRL's side of it."""

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from limit import Spent, spent
from torch import Tensor

from m2flow.data.samples import Group, Prompt
from m2flow.policies.llm import Llm

NUM_PROMPTS, NUM_SAMPLES, LONGEST = 8, 8, 64


def texts() -> list[str]:
    """Additions, solved but for the last; SmolLM2 makes 52 to 68 tokens of each."""
    rng = np.random.default_rng(0)
    out = []
    for lines in (5, 5, 6, 5, 6, 5, 6, 6):
        solved = "".join(f"{a}+{b}={a + b}\n" for a, b in rng.integers(10, 100, (lines, 2)))
        out.append(f"{solved}{rng.integers(10, 100)}+{rng.integers(10, 100)}=")
    return out


PROMPTS = [Prompt(id=str(number), text=text) for number, text in enumerate(texts())]


def planned_lengths(kind: str) -> Int[np.ndarray, "prompts samples"]:
    """All 64 tokens, or log-normal with median 24, at most 64."""
    shape = (NUM_PROMPTS, NUM_SAMPLES)
    if kind == "full":
        return np.full(shape, LONGEST)
    return np.clip(np.random.default_rng(0).lognormal(np.log(24), 0.7, shape).astype(int), 1, LONGEST)


def reward(token_ids: Any) -> float:
    """Anything that differs between responses: the share of distinct tokens."""
    return len(set(token_ids)) / len(token_ids)


class Theirs:
    """TRL's trainer; ``waiting`` is called before each step and ``done`` with the time of its generation after it."""

    def __init__(self, options: argparse.Namespace, *, folder: str, **overrides: Any) -> None:
        from datasets import Dataset

        # Of the extra "bench", which the type checker need not have.
        trl: Any = importlib.import_module("trl")

        self.completions: list[list[int]] = []
        """Of the last step, in order."""
        self.generating = Spent(0.0, 0.0)
        settings = {
            "output_dir": folder,
            "use_cpu": True,
            "bf16": False,
            "per_device_train_batch_size": options.microbatch,
            "gradient_accumulation_steps": NUM_PROMPTS * NUM_SAMPLES // options.microbatch,
            "num_generations": NUM_SAMPLES,
            "max_completion_length": LONGEST,
            "gradient_checkpointing": options.gradient_checkpointing,
            "shuffle_dataset": False,
            "model_init_kwargs": {"dtype": "float32", "attn_implementation": "sdpa"},
            "max_steps": options.steps + 1,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "seed": 0,
        }
        self.trainer: Any = trl.GRPOTrainer(
            model=str(Llm(Llm.Config(model=options.model)).folder),
            reward_funcs=self._reward,
            args=trl.GRPOConfig(**{**settings, **overrides}),
            train_dataset=Dataset.from_dict({"prompt": [prompt.text for prompt in PROMPTS]}),
        )
        self._plan(planned_lengths(options.lengths).flatten())

    def _reward(self, completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        self.completions = completion_ids
        return [reward(ids) for ids in completion_ids]

    def _plan(self, lengths: Int[np.ndarray, "rows"]) -> None:
        """Let ``generate`` end each row at its length, and be timed."""
        from transformers import LogitsProcessorList

        model, trainer = self.trainer.model, self.trainer
        inner: Callable[..., Tensor] = model.generate

        def generate(*args: Any, **options: Any) -> Tensor:
            made = []
            ends = LogitsProcessorList([planned_ends(torch.from_numpy(lengths), trainer.eos_token_ids)])
            self.generating = spent(lambda: made.append(inner(*args, logits_processor=ends, **options)))
            return made[0]

        model.generate = generate

    def losses(self) -> list[Tensor]:
        """Where the loss of every micro-batch will be found."""
        inner, found = self.trainer.compute_loss, []

        def compute_loss(*args: Any, **options: Any) -> Tensor:
            loss = inner(*args, **options)
            found.append(loss.detach())
            return loss

        self.trainer.compute_loss = compute_loss
        return found

    @torch.no_grad()
    def logprobs(self, groups: Sequence[Group]) -> list[list[Float[Tensor, "T"]]]:
        """The model's log-prob of every response token."""
        pad, out = self.trainer.processing_class.pad_token_id, []
        for group in groups:
            rows = [torch.from_numpy(np.append(group.prompt_ids, sample.token_ids)) for sample in group.samples]
            lengths = [len(sample.token_ids) for sample in group.samples]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
            mask = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
            found, *_ = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model, ids, mask.long(), max(lengths)
            )
            out.append([row[:length] for row, length in zip(found, lengths, strict=True)])
        return out

    def run(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """All steps; ``begin`` and ``end`` are called around each."""
        from transformers import TrainerCallback

        class Around(TrainerCallback):
            """Says when a step begins and ends."""

            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                """Before the prompts are read."""
                begin()

            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                """After the optimizer's step."""
                end()

        self.trainer.add_callback(Around())
        self.trainer.train()


def planned_ends(lengths: Int[Tensor, "rows"], stops: list[int]) -> Any:
    """A logits processor: no row stops before its length, and each does then."""
    from transformers import LogitsProcessor

    class Planned(LogitsProcessor):
        """Counts what ``generate`` has made."""

        made = 0

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            """Scores [rows, vocabulary] of the next token."""
            self.made += 1
            scores[:, stops] = -torch.inf
            end = (lengths == self.made).nonzero()[:, 0]
            scores[end] = -torch.inf
            scores[end, stops[0]] = 0.0
            return scores

    return Planned()
