# SPDX-License-Identifier: Apache-2.0
"""What flows between roles of a language-model run: prompts, samples and groups.

Arrays are numpy, so that they cross processes without pickling tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One problem to answer.

    ``text`` is raw text, ``messages`` a chat (``[{"role": ..., "content": ...}]``); exactly one of them is given.
    ``columns`` holds the other fields of the data set's row (the gold answer, say), given to rewards by name.
    """

    id: str
    text: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Sample:
    """One response to a prompt. ``T`` is its number of response tokens, a stop token included.

    Log-probs are natural logarithms in float32. ``sampled_logprobs`` belong to the distribution that was sampled from
    (temperature, top-p, top-k applied), ``logprobs`` to the model's own softmax at temperature 1.
    ``versions`` counts the optimizer updates of the weights that made each token.
    """

    index: int
    """Which of the prompt's samples this is, from 0."""
    token_ids: np.ndarray
    """[T] int64."""
    logprobs: np.ndarray
    """[T] float32."""
    sampled_logprobs: np.ndarray
    """[T] float32."""
    entropies: np.ndarray
    """[T] float32: entropy of the model's own softmax before each token, nats."""
    versions: np.ndarray
    """[T] int32."""
    text: str
    """The response without its stop token."""
    finish_reason: Literal["stop", "length"]
    """``length``: cut at the token limit, so truncated, not terminated."""
    reward: float | None = None
    """Weighted total; ``None`` until scored, and where no reward applied to this sample."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Each reward function's own value."""


@dataclass(kw_only=True)
class Group:
    """All samples of one prompt. ``prompt_ids`` is [P] int64, the tokens that every sample continues."""

    prompt: Prompt
    prompt_ids: np.ndarray
    samples: list[Sample]
    iteration: int = 0
