# SPDX-License-Identifier: Apache-2.0
"""A sample while it is being generated, and the group that waits for it."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from m2flow.data.samples import Group, Prompt, Sample
from m2flow.engines.decoding.cache import KeyValues

TAIL_SLACK = 8
"""Tokens looked at beyond a stop string's own length: some tokens are only part of a character."""


@dataclass(kw_only=True)
class Pending:
    """A group of which some samples are not finished."""

    prompt: Prompt
    prompt_ids: np.ndarray
    num_samples: int
    num_waiting: int
    """Samples that have no row yet; the prompt's keys are kept for them."""
    keys: KeyValues = field(default_factory=list)
    first_logits: Tensor | None = None
    samples: list[Sample] = field(default_factory=list)

    def group(self, iteration: int) -> Group:
        """The finished group, samples in order."""
        ordered = sorted(self.samples, key=lambda sample: sample.index)
        return Group(prompt=self.prompt, prompt_ids=self.prompt_ids, samples=ordered, iteration=iteration)


@dataclass(kw_only=True)
class Active:
    """One row of the batch."""

    pending: Pending
    index: int
    uniforms: Float[np.ndarray, "max_new_tokens"]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def finish_reason(self, policy: Any, stop: tuple[str, ...]) -> Literal["stop", "length"] | None:
        """Why it ends after its last token; ``None`` if it goes on."""
        if self.tokens[-1] in policy.stop_token_ids or (stop and self._stopped(policy, stop)):
            return "stop"
        return "length" if len(self.tokens) == len(self.uniforms) else None

    def _stopped(self, policy: Any, stop: tuple[str, ...]) -> bool:
        tail = policy.decode(self.tokens[-max(map(len, stop)) - TAIL_SLACK :])
        return any(text in tail for text in stop)

    def sample(self, policy: Any, reason: Literal["stop", "length"], stop: tuple[str, ...]) -> Sample:
        """The finished sample; its text ends before the first stop string."""
        text = policy.decode([token for token in self.tokens if token not in policy.stop_token_ids])
        cuts = [text.find(mark) for mark in stop if mark in text]
        return Sample(
            index=self.index,
            token_ids=np.array(self.tokens, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            sampled_logprobs=np.array(self.sampled_logprobs, dtype=np.float32),
            entropies=np.array(self.entropies, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            text=text[: min(cuts)] if cuts else text,
            finish_reason=reason,
        )
