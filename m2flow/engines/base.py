# SPDX-License-Identifier: Apache-2.0
"""What an engine is: it samples from a policy, groups of texts for prompts or ticks of environments."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from m2flow.config import Config
from m2flow.data.films import Film
from m2flow.data.samples import Group, Prompt
from m2flow.data.trajectories import Episode, Trajectories
from m2flow.envs.stepping.base import Stepper
from m2flow.errors import EngineError
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
    """Samples with a policy's weights: texts, or actions. ``policy`` is a ``policies`` plug-in such as ``Llm``."""

    def __init__(self, config: Any, policy: Any) -> None:
        self.config = config
        self.policy = policy

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
            EngineError: a prompt and ``max_new_tokens`` do not fit in the model's context, or this engine acts.
        """
        raise EngineError(f"the engine '{self.name}' makes no texts: call rollout.interact(env, steps=...)")

    def interact(self, stepper: Stepper, *, steps: int | None = None, episodes: int | None = None) -> Trajectories:
        """``steps`` ticks of every row, going on where the last call ended; or ``episodes`` whole ones of each.

        Raises:
            EngineError: nothing limits the length of an episode, or this engine generates.
        """
        raise EngineError(f"the engine '{self.name}' does not act: call rollout.generate(prompts)")

    def evaluate(self, stepper: Stepper, *, episodes: int) -> list[Episode]:
        """The first ``episodes`` episodes from here, shared out evenly among the rows, by the most likely actions.

        Raises:
            EngineError: nothing limits the length of an episode, or this engine generates.
        """
        raise EngineError(f"the engine '{self.name}' does not act: call rollout.generate(prompts)")

    def film(self, stepper: Stepper, *, episodes: int) -> Film:
        """The first ``episodes`` episodes of row 0 from here, by the most likely actions: what each action answers.

        Raises:
            EngineError: nothing limits the length of an episode, or this engine generates.
            SimulatorError: the simulator cannot draw here.
            M2flowError: the package that encodes films is not installed.
        """
        raise EngineError(f"the engine '{self.name}' does not act: call rollout.generate(prompts)")

    @abstractmethod
    def load_weights(self, policy: Any) -> None:
        """Take over the weights of ``policy``; later samples carry ``policy.version``."""


class ModuleEngine(Engine):
    """Computes with the policy's own torch module, in this process."""

    def __init__(self, config: Any, policy: Any) -> None:
        super().__init__(config, policy)
        self.version: int | None = None
        """Version of the weights that were last taken over; ``None`` before first use."""

    def load_weights(self, policy: Any) -> None:
        """Take over the weights of ``policy``; where it is this engine's own policy they are in place already.

        Raises:
            EngineError: names or shapes of the tensors are not those of this engine's policy.
        """
        if policy is not self.policy:
            _copy_weights(policy.state(), self.policy.state())
            self.policy.version = policy.version
        self.version = policy.version

    def require_current(self) -> int:
        """The version of the weights, which is the one that was last taken over.

        Raises:
            EngineError: the weights have moved on since.
        """
        if self.version is None:
            self.version = self.policy.version
        if self.version != self.policy.version:
            raise EngineError(
                f"the policy's weights are at version {self.policy.version} and this engine took over version "
                f"{self.version}: call rollout.load_weights(learner) after learner.update"
            )
        return self.policy.version


def _copy_weights(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    wrong = sorted(given.keys() ^ own.keys())
    wrong += sorted(name for name in given.keys() & own.keys() if given[name].shape != own[name].shape)
    if wrong:
        raise EngineError(
            f"these weights belong to another model: {len(wrong)} tensors are missing, unexpected or of another shape "
            f"({', '.join(wrong[:3])}); give the engine a policy with the learner's model and adapter options"
        )
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(given[name])
