# SPDX-License-Identifier: Apache-2.0
"""Generation with the policy's own Hugging Face module: continuous batching in this process, on any device."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from m2flow.config import Config as BaseConfig
from m2flow.data.samples import Group, Prompt
from m2flow.engines.base import Engine, SamplingConfig
from m2flow.engines.decoding.active import Active, Pending
from m2flow.engines.decoding.cache import Decode, Prefill
from m2flow.engines.decoding.draw import Drawn, draw, uniforms
from m2flow.errors import EngineError


class Hf(Engine):
    """Continuous batching over packed rows.

    A group's prompt is computed once. A sample that ends leaves its row to the next one at once, so none waits for the
    longest. Samples are seeded one by one; they agree between batches to the accuracy of the matrix product.
    """

    class Config(BaseConfig):
        """Options of the engine."""

        max_batch_size: int = Field(default=256, ge=1)
        """Samples that are generated at a time."""
        max_prefill_tokens: int = Field(default=4096, ge=1)
        """Prompt tokens computed in one forward; a longer prompt has a forward of its own."""

    def __init__(self, config: Any, policy: Any) -> None:
        super().__init__(config, policy)
        self.version: int | None = None
        """Version of the weights that were last taken over; ``None`` before first use."""

    def load_weights(self, policy: Any) -> None:
        """Take over the weights of ``policy``; where it is this engine's own policy they are in place already."""
        if policy is not self.policy:
            self.policy.load_state(policy.state())
            self.policy.version = policy.version
        self.version = policy.version

    def generate(
        self,
        prompts: Iterable[Prompt],
        *,
        samples_per_prompt: int,
        sampling: SamplingConfig,
        seed: int,
        iteration: int,
    ) -> Iterator[Group]:
        """See ``Engine.generate``. All prompts are checked before the first token is made."""
        if samples_per_prompt < 1:
            raise EngineError(f"samples_per_prompt is {samples_per_prompt}, expected at least 1")
        if self.version is None:
            self.version = self.policy.version
        if self.version != self.policy.version:
            raise EngineError(
                f"the policy's weights are at version {self.policy.version} and this engine took over version "
                f"{self.version}: call rollout.load_weights(learner) after learner.update"
            )
        waiting = deque(self._pending(prompt, samples_per_prompt, sampling) for prompt in list(prompts))
        batch = _Batch(self, sampling, seed=seed, iteration=iteration)
        while waiting or batch.active:
            with torch.inference_mode():
                finished = batch.step(waiting)
            yield from finished

    def _pending(self, prompt: Prompt, num_samples: int, sampling: SamplingConfig) -> Pending:
        ids = self.policy.encode(prompt)
        if len(ids) + sampling.max_new_tokens > self.policy.max_context:
            raise EngineError(
                f"prompt '{prompt.id}' has {len(ids)} tokens; with max_new_tokens {sampling.max_new_tokens} that is "
                f"more than the model's context of {self.policy.max_context}: shorten the prompt or the response"
            )
        return Pending(prompt=prompt, prompt_ids=ids, num_samples=num_samples, num_waiting=num_samples)


class _Batch:
    """The samples that are being generated now."""

    def __init__(self, engine: Hf, sampling: SamplingConfig, *, seed: int, iteration: int) -> None:
        self.engine, self.policy, self.sampling = engine, engine.policy, sampling
        self.seed, self.iteration = seed, iteration
        self.active: list[Active] = []
        self.cache = Decode(engine.config.max_batch_size)
        self.device = self.policy.head_weight.device
        self.version = engine.version or 0

    def step(self, waiting: deque[Pending]) -> list[Group]:
        """One token for every active sample, then the first tokens of new ones; returns the groups that this
        finishes."""
        finished = self._decode() if self.active else []
        if waiting and len(self.active) < self.cache.num_rows:
            finished += self._admit(waiting)
        return finished

    def _decode(self) -> list[Group]:
        positions = self.cache.begin(len(self.active)).to(self.device)
        tokens = torch.tensor([row.tokens[-1] for row in self.active], device=self.device)
        hidden = self.policy.hidden(tokens, positions, self.cache)
        return self._take(0, self.policy.logits(hidden))

    def _admit(self, waiting: deque[Pending]) -> list[Group]:
        start, free = len(self.active), self.cache.num_rows - len(self.active)
        chosen: list[Pending] = []
        while waiting and free > 0:
            pending = waiting[0]
            taken = min(free, pending.num_waiting)
            chosen += [pending] * taken
            free, pending.num_waiting = free - taken, pending.num_waiting - taken
            if not pending.num_waiting:
                waiting.popleft()
        self._prefill(list({id(p): p for p in chosen if not p.keys}.values()))
        logits = []
        for row, pending in enumerate(chosen, start):
            logits.append(pending.first_logits)
            self.cache.admit(row, pending.keys)
            self.active.append(self._start(pending))
        for pending in chosen:
            if not pending.num_waiting:
                pending.keys, pending.first_logits = [], None
        return self._take(start, torch.stack([row for row in logits if row is not None]))

    def _start(self, pending: Pending) -> Active:
        index = sum(row.pending is pending for row in self.active) + len(pending.samples)
        numbers = uniforms(
            seed=self.seed,
            iteration=self.iteration,
            prompt_id=pending.prompt.id,
            index=index,
            number=self.sampling.max_new_tokens,
        )
        return Active(pending=pending, index=index, uniforms=numbers)

    def _prefill(self, new: list[Pending]) -> None:
        while new:
            part, num_tokens = [new.pop(0)], 0
            num_tokens = len(part[0].prompt_ids)
            while new and num_tokens + len(new[0].prompt_ids) <= self.engine.config.max_prefill_tokens:
                num_tokens += len(new[0].prompt_ids)
                part.append(new.pop(0))
            self._compute(part)

    def _compute(self, part: list[Pending]) -> None:
        lengths = [len(pending.prompt_ids) for pending in part]
        layout = Prefill(lengths)
        tokens = torch.cat([torch.from_numpy(pending.prompt_ids) for pending in part]).to(self.device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self.device)
        hidden = self.policy.hidden(tokens, positions, layout)
        last = torch.tensor(lengths).cumsum(0) - 1
        logits = self.policy.logits(hidden[last.to(self.device)])
        for pending, keys, first in zip(part, layout.prompts, logits, strict=True):
            pending.keys, pending.first_logits = keys, first

    def _take(self, start: int, logits: Tensor) -> list[Group]:
        rows = self.active[start:]
        numbers = torch.tensor([row.uniforms[len(row.tokens)] for row in rows], dtype=torch.float64, device=self.device)
        self._append(rows, draw(logits, numbers, self.sampling))
        return self._remove_finished(start)

    def _append(self, rows: list[Active], drawn: Drawn) -> None:
        columns = (drawn.tokens, drawn.logprobs, drawn.sampled_logprobs, drawn.entropies)
        for row, token, logprob, sampled, entropy in zip(rows, *(c.tolist() for c in columns), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.sampled_logprobs.append(sampled)
            row.entropies.append(entropy)
            row.versions.append(self.version)

    def _remove_finished(self, start: int) -> list[Group]:
        finished = []
        for place in range(len(self.active) - 1, start - 1, -1):
            row = self.active[place]
            reason = row.finish_reason(self.policy, self.sampling.stop)
            if reason is None:
                continue
            row.pending.samples.append(row.sample(self.policy, reason, self.sampling.stop))
            self._free(place)
            if len(row.pending.samples) == row.pending.num_samples:
                finished.append(row.pending.group(self.iteration))
        return finished

    def _free(self, place: int) -> None:
        last = len(self.active) - 1
        if place != last:
            self.cache.move(last, place)
            self.active[place] = self.active[last]
        self.active.pop()
