# SPDX-License-Identifier: Apache-2.0
"""What a generation engine is: prompts in, finished groups out, in the order in which they finish."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import Field

from m2flow.config import Config
from m2flow.data.samples import Group, Prompt
from m2flow.registry import Plugin


class SamplingConfig(Config):
    """How the next token is drawn."""

    max_new_tokens: int = Field(default=64, gt=0)
    """Longest response, in tokens."""
    temperature: float = Field(default=1.0, ge=0)
    """Divides the logits; 0 takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Smallest set of most likely tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Only the k most likely tokens; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """A response ends after any of these strings, besides the model's own stop tokens."""


class Engine(Plugin, ABC):
    """Generates with a policy's weights. ``policy`` is a ``policies`` plug-in such as ``Llm``."""

    def __init__(self, config: Any, policy: Any) -> None:
        self.config = config
        self.policy = policy

    @abstractmethod
    def generate(
        self,
        prompts: Iterable[Prompt],
        *,
        samples_per_prompt: int,
        sampling: SamplingConfig,
        seed: int,
        iteration: int,
    ) -> Iterator[Group]:
        """Yield each prompt's group as soon as its last sample is finished.

        A sample depends on (``seed``, ``iteration``, prompt id, sample index) and the weights, not on what else is in
        the batch (to the floating-point accuracy of the matrix product).

        Raises:
            EngineError: a prompt and ``max_new_tokens`` do not fit in the model's context.
        """

    @abstractmethod
    def load_weights(self, policy: Any) -> None:
        """Take over the weights of ``policy``; later samples carry ``policy.version``."""
