# SPDX-License-Identifier: Apache-2.0
"""The role that samples: prompts in, groups of responses out."""

from collections.abc import Iterable, Iterator
from typing import Any

from m2flow.config import Config
from m2flow.data.samples import Group, Prompt
from m2flow.engines.base import Engine, SamplingConfig
from m2flow.registry import EngineConfig, build


class _Parts(Config):
    """Checks what a rollout is made of."""

    engine: EngineConfig
    """What generates."""


class Rollout:
    """Samples from ``policy`` with an engine: an id (``"hf"``), a mapping of its options, or its Config."""

    context: Any = None

    def __init__(self, policy: Any, *, engine: Any = "hf", sampling: SamplingConfig | None = None) -> None:
        parts: Any = _Parts(engine=engine)
        self.engine: Engine = build(parts.engine, policy)
        self.sampling = sampling or SamplingConfig()

    def generate(
        self, prompts: Iterable[Prompt], samples_per_prompt: int = 8, sampling: SamplingConfig | None = None
    ) -> Iterator[Group]:
        """One group for each prompt, in the order in which they finish; ``sampling`` overrides the role's own.

        Raises:
            EngineError: a prompt does not fit in the context, or the weights moved on without ``load_weights``.
        """
        yield from self.engine.generate(
            prompts,
            samples_per_prompt=samples_per_prompt,
            sampling=sampling or self.sampling,
            seed=self.context.seed if self.context is not None else 0,
            iteration=self.context.iteration if self.context is not None else 0,
        )

    def load_weights(self, learner: Any) -> None:
        """Take over the learner's weights; later samples carry its version."""
        self.engine.load_weights(learner.policy)
