# SPDX-License-Identifier: Apache-2.0
"""The trainer of one process: micro-batches one after another on the policy's own device."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import Parameter

from m2flow import config
from m2flow.algorithms.base import Batch, Loss, Totals
from m2flow.errors import LearnerError
from m2flow.trainers.base import Objective, Settings, Trainer, Workload
from m2flow.trainers.optimization import plan, stages
from m2flow.trainers.optimization.adamw import Optimizer
from m2flow.trainers.optimization.plan import Minibatch
from m2flow.trainers.optimization.schedule import ScheduleConfig

_Decay = Annotated[float, Field(ge=0, lt=1)]

_MUST_BE_FINITE = ("/loss", "/grad_norm")
"""Ends of the names of the numbers that decide whether a step is made."""


class Local(Trainer):
    """One process; gradients of micro-batches add up to those of the whole mini-batch.

    Mini-batches hold whole groups. Their composition is drawn once an update and their order anew in each epoch, so
    that a step at unchanged weights repeats the old log-probs bit for bit: its ratio is 1 and its KL 0 exactly.
    """

    class Config(config.Config):
        """How the weights are updated."""

        learning_rate: float = Field(default=1e-6, ge=0)
        """AdamW's, of the policy."""
        critic_learning_rate: float = Field(default=1e-5, ge=0)
        """AdamW's, of the critic, where the algorithm has one."""
        betas: tuple[_Decay, _Decay] = (0.9, 0.999)
        """AdamW's decay of the first and the second moment."""
        eps: float = Field(default=1e-8, gt=0)
        """AdamW's epsilon."""
        weight_decay: float = Field(default=0.0, ge=0)
        """Decoupled, of matrices; norms and biases are not decayed."""
        max_grad_norm: float = Field(default=1.0, ge=0)
        """Gradients are scaled down to this norm, policy and critic each on its own; 0 leaves them."""
        schedule: ScheduleConfig = ScheduleConfig()
        """How the learning rates change."""
        epochs: int = Field(default=1, ge=1)
        """Passes over the batch of one update."""
        minibatches: int = Field(default=1, ge=1)
        """Optimizer steps of one pass; must divide the number of groups."""
        max_tokens_per_microbatch: int = Field(default=1024, ge=1)
        """Packed tokens computed at once: bounds memory, leaves the result as it is."""
        activation_checkpointing: bool = False
        """Compute activations again in the backward pass: less memory, a third more time."""
        skip_nonfinite_steps: bool = False
        """Count an optimizer step whose loss or gradient is not finite and leave it out, instead of stopping."""

    def __init__(self, config: Any, algorithm: Any) -> None:
        super().__init__(config, algorithm)
        self.steps = 0
        """Optimizer steps made in all."""
        self._optimizer: Optimizer | None = None

    def start(self, parameters: Mapping[str, Mapping[str, Parameter]]) -> None:
        """See ``Trainer.start``."""
        c = self.config
        self._optimizer = Optimizer(parameters, betas=c.betas, eps=c.eps, weight_decay=c.weight_decay)

    @property
    def optimizer(self) -> Optimizer:
        """Made by ``start``."""
        if self._optimizer is None:
            raise LearnerError("the trainer has no parameters yet: call start first")
        return self._optimizer

    @property
    def activation_checkpointing(self) -> bool:
        """See ``Trainer.activation_checkpointing``."""
        return self.config.activation_checkpointing

    @classmethod
    def batch_problems(cls, config: Any, *, num_groups: int, longest_response: int) -> list[str]:
        """See ``Trainer.batch_problems``."""
        found = []
        if num_groups % config.minibatches:
            found.append(
                f"{num_groups} groups cannot be cut into minibatches={config.minibatches} equal parts: let the number "
                "of prompts of an iteration be a multiple of it"
            )
        if longest_response > config.max_tokens_per_microbatch:
            found.append(
                f"one response may have {longest_response} tokens, more than max_tokens_per_microbatch="
                f"{config.max_tokens_per_microbatch}: raise that to at least the longest prompt and response together"
            )
        return found

    def update(self, work: Workload, batch: Batch, *, settings: Settings) -> dict[str, float]:
        """See ``Trainer.update``."""
        c, seed = self.config, settings.seed + self.steps
        steps = self._plan(work, batch, seed=seed)

        def whole(compute: stages.Compute) -> Float[Tensor, "S T"]:
            return self._computed(compute, work, steps=steps, like=batch.rollout_logprobs)

        prepared = stages.prepare(work, batch, algorithm=self.algorithm, whole=whole, num_steps=c.epochs * len(steps))
        update = _Update(work, prepared, settings=settings)
        for minibatch in plan.epochs(steps, c.epochs, seed=seed):
            if self._step(update, minibatch):
                break
        learner, rows = prepared.old_logprobs, torch.ones_like(update.seen_rows)
        if learner is None:
            learner, rows = self._total(update.seen), self._total(update.seen_rows.int()).bool()
        # Of all tokens that came: the algorithm may have left those out that differ most.
        agreed = stages.agreement(batch.rollout_logprobs[rows], learner[rows], mask=batch.mask[rows])
        corrected = stages.correction(batch, prepared)
        return {**agreed, **corrected, **update.steps.metrics(), "learner/step": float(self.steps)}

    def _plan(self, work: Workload, batch: Batch, *, seed: int, multiple: int = 1) -> list[Minibatch]:
        num, bound = self.config.minibatches, self.config.max_tokens_per_microbatch
        return plan.make(work, batch.group_ids, num=num, max_tokens=bound, seed=seed, multiple=multiple)

    def _computed(
        self, compute: stages.Compute, work: Workload, *, steps: list[Minibatch], like: Float[Tensor, "S T"]
    ) -> Float[Tensor, "S T"]:
        """Something for all rows, without gradient."""
        return stages.computed(compute, steps, like=like)

    def _total(self, tensor: Tensor) -> Tensor:
        """The sum of ``tensor`` over all who share the work."""
        return tensor

    def _step(self, update: "_Update", minibatch: Minibatch) -> bool:
        """One optimizer step, or none; whether the algorithm wants no further ones."""
        totals = Totals.of(update.batch.mask[torch.cat(minibatch)], max_tokens=update.settings.max_tokens)
        if not totals.num_tokens:
            update.steps.count("learner/steps_without_tokens")
            return False
        sums = self._accumulate(update, minibatch, totals=totals)
        if not _can_step(sums):
            self._leave_out(update, minibatch, totals=totals)
            return False
        if self.algorithm.stop_early(sums):
            # The weights have gone far enough already; the gradient taken there is dropped with what is left.
            self.optimizer.zero()
            update.steps.count("learner/stopped_early")
            return True
        self._descend(update.steps, sums, settings=update.settings)
        return False

    def _descend(self, steps: "_Steps", sums: dict[str, float], *, settings: Settings) -> None:
        rates = self._learning_rates(settings.num_updates)
        self.optimizer.step(rates)
        self.steps += 1
        steps.add({**sums, **{f"{part}/learning_rate": rate for part, rate in rates.items()}})

    def _learning_rates(self, num_updates: int | None) -> dict[str, float]:
        c = self.config
        factor = c.schedule.factor(self.steps, num_updates and num_updates * c.epochs * c.minibatches)
        rates = {"policy": c.learning_rate, "critic": c.critic_learning_rate}
        return {part: rates[part] * factor for part in self.optimizer.parameters}

    def fit(self, objective: Objective, *, num: int, settings: Settings) -> dict[str, float]:
        """See ``Trainer.fit``: ``epochs`` times ``minibatches`` steps, each of ``num / minibatches`` samples."""
        c, steps = self.config, _Steps()
        size, bound = -(-num // c.minibatches), c.max_tokens_per_microbatch
        parts = [min(bound, size - begin) for begin in range(0, size, bound)]
        for _ in range(c.epochs * c.minibatches):
            sums = self._clipped(self._added_up(_whole(objective.loss(part, share=part / size)) for part in parts))
            if _can_step(sums):
                self._descend(steps, sums, settings=settings)
            elif c.skip_nonfinite_steps:
                steps.count("learner/nonfinite_steps")
                self.optimizer.zero()
            else:
                raise LearnerError(
                    f"loss or gradient is not finite ({dict(sums)}). No step was made: lower the learning rates, look "
                    "at the rewards, or set skip_nonfinite_steps"
                )
            objective.stepped()
        return {**steps.metrics(), "learner/step": float(self.steps)}

    def _accumulate(self, update: "_Update", minibatch: Minibatch, *, totals: Totals) -> dict[str, float]:
        """Gradients of a whole mini-batch; the sums of its micro-batches' numbers, and the norms before clipping."""
        return self._clipped(self._gradients(update, minibatch, totals=totals))

    def _clipped(self, sums: dict[str, float]) -> dict[str, float]:
        if not _can_step(sums):
            return sums
        norms = {part: self.optimizer.clip(part, self.config.max_grad_norm) for part in self.optimizer.parameters}
        return {**sums, **{f"{part}/grad_norm": norm for part, norm in norms.items()}}

    def _gradients(self, update: "_Update", minibatch: Minibatch, *, totals: Totals) -> dict[str, float]:
        return self._added_up(self._loss(update, rows, totals=totals) for rows in minibatch)

    def _added_up(self, losses: Iterable[tuple[Tensor, dict[str, float]]]) -> dict[str, float]:
        """Gradients of micro-batches, and the sums of their numbers; it ends at one that is not finite."""
        sums: dict[str, float] = defaultdict(float)
        for loss, numbers in losses:
            for key, value in numbers.items():
                sums[key] += value
            if not math.isfinite(loss.item()):
                return sums
            loss.backward()
            self.optimizer.collect()
        return sums

    def _loss(
        self, update: "_Update", rows: Tensor, *, totals: Totals, sees: bool = True
    ) -> tuple[Tensor, dict[str, float]]:
        outputs = update.work.outputs(rows.tolist(), self.algorithm.needs)
        batch, now = update.batch.rows(rows), outputs.logprobs.detach()
        if batch.old_logprobs is None:
            batch = replace(batch, old_logprobs=now)
        if sees:
            update.see(rows, now)
        return _whole(self.algorithm.loss(batch, outputs, totals=totals))

    def _leave_out(self, update: "_Update", minibatch: Minibatch, *, totals: Totals) -> None:
        """Count a step that is not finite, or name the samples that make it so."""
        self.optimizer.zero()
        if self.config.skip_nonfinite_steps:
            update.steps.count("learner/nonfinite_steps")
            return
        bad = [row for row in sorted(torch.cat(minibatch).tolist()) if not self._is_finite(update, row, totals=totals)]
        named = ", ".join(update.work.describe(row) for row in bad[:3]) or "no sample alone, only their sum"
        raise LearnerError(
            f"loss or gradient is not finite; it comes from {named} ({len(bad)} samples in all). No step was made: "
            "lower the learning rate, look at their rewards and log-probs, or set skip_nonfinite_steps"
        )

    def _is_finite(self, update: "_Update", row: int, *, totals: Totals) -> bool:
        sums = self._accumulate(update, [torch.tensor([row])], totals=totals)
        self.optimizer.zero()
        return _can_step(sums)

    def state(self) -> dict[str, Any]:
        """See ``Trainer.state``."""
        return {"steps": self.steps, "optimizer": self.optimizer.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See ``Trainer.load_state``."""
        self.optimizer.load_state(state["optimizer"])
        self.steps = int(state["steps"])


def _can_step(sums: Mapping[str, float]) -> bool:
    return math.isfinite(sum(sums[key] for key in sums if key.endswith(_MUST_BE_FINITE)))


def _whole(loss: Loss) -> tuple[Tensor, dict[str, float]]:
    """What is descended, and the numbers that tell of it."""
    numbers = {**loss.sums, "policy/loss": loss.policy.item()}
    if loss.value is None:
        return loss.policy, numbers
    return loss.policy + loss.value, {**numbers, "critic/loss": loss.value.item()}


class _Steps:
    """The steps of an update so far, and what else was counted."""

    def __init__(self) -> None:
        self.made: list[dict[str, float]] = []
        self._counts: Counter[str] = Counter()

    def count(self, name: str) -> None:
        """One more of what the metric ``name`` counts."""
        self._counts[name] += 1

    def add(self, numbers: dict[str, float]) -> None:
        """The numbers of a step that was made."""
        self.made.append(numbers)

    def metrics(self) -> dict[str, float]:
        """Means over the steps that have a number, and counts. A name without a group belongs to ``policy``."""
        values: dict[str, list[float]] = defaultdict(list)
        for numbers in self.made:
            for key, value in numbers.items():
                values[key if "/" in key else f"policy/{key}"].append(value)
        means = {key: math.fsum(found) / len(found) for key, found in values.items()}
        return {**means, **{key: float(n) for key, n in self._counts.items()}, "learner/steps": float(len(self.made))}


class _Update:
    """One update's data, and what was seen of it so far."""

    def __init__(self, work: Workload, batch: Batch, *, settings: Settings) -> None:
        self.work, self.batch, self.settings = work, batch, settings
        self.seen = torch.zeros_like(batch.rollout_logprobs)
        """Log-probs before the first step, in the rows that it had."""
        self.seen_rows = torch.zeros(len(batch.mask), dtype=torch.bool)
        self.steps = _Steps()

    def see(self, rows: Tensor, logprobs: Float[Tensor, "n T"]) -> None:
        """Remember log-probs at the weights that the update began with."""
        if not self.steps.made:
            self.seen[rows] = logprobs
            self.seen_rows[rows] = True
