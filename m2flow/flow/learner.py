# SPDX-License-Identifier: Apache-2.0
"""The role that learns: scored groups or trajectories in, optimizer steps on the policy's weights, metrics out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from m2flow.algorithms.base import Algorithm, OffPolicy
from m2flow.config import Config
from m2flow.data.trajectories import Trajectories
from m2flow.engines.base import SamplingConfig
from m2flow.errors import CheckpointError, LearnerError
from m2flow.flow.material import material_of
from m2flow.registry import AlgorithmConfig, TrainerConfig, build
from m2flow.runtime.calls import everywhere
from m2flow.trainers.base import Settings, Trainer
from m2flow.trainers.packing.texts import Models


class _Parts(Config):
    """Checks what a learner is made of."""

    algorithm: AlgorithmConfig
    """What the update computes."""
    trainer: TrainerConfig
    """How the weights are updated."""


@dataclass(frozen=True, kw_only=True)
class PolicyWeights:
    """A policy as others see it who are not in its process: its version and its trained tensors."""

    version: int
    tensors: Mapping[str, torch.Tensor]

    def state(self) -> Mapping[str, torch.Tensor]:
        """The tensors by name, as ``Llm.state``."""
        return self.tensors


@dataclass(frozen=True, kw_only=True)
class LearnerWeights:
    """A learner as others see it: what ``Rollout.load_weights`` reads."""

    policy: PolicyWeights


class Learner:
    """Trains ``policy`` by reinforcement on groups of texts, or on trajectories, just acted or drawn from a memory.

    What the algorithm needs (reference policy, critic) is made at the first update, from the weights that the policy
    has before it. ``sampling`` is what the rollout samples with: its temperature divides the learner's logits too, and
    its ``max_new_tokens`` is the longest response that losses may be divided by. ``algorithm`` and ``trainer`` are
    Configs, ids, or mappings of an id's options.
    """

    context: Any = None

    def __init__(
        self, policy: Any, *, algorithm: Any = "grpo", trainer: Any = "local", sampling: SamplingConfig | None = None
    ) -> None:
        self.policy = policy
        parts: Any = _Parts(algorithm=algorithm, trainer=trainer)
        self.algorithm: Algorithm | OffPolicy = build(parts.algorithm)
        self.trainer: Trainer = build(parts.trainer, self.algorithm)
        self.material = material_of(policy, self.algorithm, sampling=sampling)
        self._models: Models | None = None

    @property
    def models(self) -> Models:
        """Policy, reference and critic; loaded and handed to the trainer when first used."""
        if self._models is None:
            self._models = self._start()
        return self._models

    def _start(self) -> Models:
        needs, policy = self.algorithm.needs, self.policy
        if unknown := needs - Algorithm.CAPABILITIES:
            raise LearnerError(f"algorithm '{self.algorithm.name}' needs {sorted(unknown)}, which no learner computes")
        if self.trainer.activation_checkpointing:
            policy.checkpoint_activations(True)
        reference = policy.reference() if "reference_logprobs" in needs else None
        critic = self.material.critic(policy)
        models = Models(policy=policy, reference=reference, critic=critic, call=self.trainer.call)
        self.trainer.adopt(models.modules)
        parts = {"policy": policy.trainable()}
        self.trainer.start(parts if critic is None else {**parts, "critic": critic.trainable()})
        return models

    @everywhere
    def update(self, items: Iterable[Any] | Trajectories) -> dict[str, float]:
        """All optimizer steps that the trainer makes of ``items``; returns metrics.

        Of texts, samples without a reward are left out. Groups that the algorithm does not keep are replaced by
        ``items.more``, if the algorithm has resampling rounds. If nothing is left no step is made: weights and version
        stay, and ``learner/skipped`` is 1.

        Args:
            items: scored groups of texts, or what ``Rollout.interact`` returned.

        Raises:
            LearnerError: a batch that cannot be cut as configured, a response longer than configured, a temperature
                other than the rollout's, a loss or gradient that is not finite.
        """
        taken = self.material.take(items, trainer=self.trainer)
        metrics = {**taken.metrics, "learner/skipped": float(taken.is_empty)}
        if taken.is_empty:
            return metrics
        trained = taken.train(self.models, self.trainer, settings=self._settings())
        if trained["learner/steps"]:
            self.policy.version += 1
        return {**metrics, **trained, "learner/version": float(self.policy.version)}

    def _settings(self) -> Settings:
        return Settings(
            max_tokens=self.material.max_tokens,
            seed=self.context.seed if self.context is not None else 0,
            num_updates=self.context.num_iterations if self.context is not None else None,
        )

    @property
    def max_slots(self) -> int | None:
        """As many as its trainer can use."""
        return self.trainer.max_ranks

    def join(self, meeting: str) -> None:
        """Work as one with the copies of this learner on other slots, which call this too.

        Args:
            meeting: where they find each other, ``tcp://host:port``.
        """
        from m2flow.trainers.sharding import ranks

        slots, slot = self.context.slots, self.context.slot
        device = "cuda" if torch.cuda.is_available() else "cpu"
        ranks.join(slots.index(slot), len(slots), init_method=meeting, device=device)

    @everywhere
    def snapshot(self) -> LearnerWeights:
        """What goes to a rollout that does not share this learner's policy: whole tensors."""
        tensors = dict(self.trainer.gathered(self.models.policy.state()))
        return LearnerWeights(policy=PolicyWeights(version=self.policy.version, tensors=tensors))

    def state(self) -> dict[str, Any]:
        """Weights, version, optimizer, schedule and critic: what a resumed run needs to go on bit for bit.

        The reference is not in it: it is the model that the run began with, which ``policy`` reads again.
        """
        critic = self.models.critic
        return {
            "policy": self.trainer.saved(self.policy.state()),
            "version": self.policy.version,
            "trainer": self.trainer.state(),
            "critic": {} if critic is None else self.trainer.saved(critic.state()),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it belongs to another model, algorithm or trainer.
        """
        models = self.models
        if bool(state["critic"]) != (models.critic is not None):
            has, wants = ("a", "none") if state["critic"] else ("no", "one")
            raise CheckpointError(
                f"the checkpoint has {has} critic, algorithm '{self.algorithm.name}' wants {wants}: resume with the "
                "algorithm that the run began with"
            )
        self.policy.load_state(self.trainer.restored(state["policy"], own=self.policy.state()))
        if models.critic is not None:
            models.critic.load_state(self.trainer.restored(state["critic"], own=models.critic.state()))
        with torch.no_grad():
            self.trainer.load_state(state["trainer"])
        self.policy.version = int(state["version"])
