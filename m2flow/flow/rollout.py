# SPDX-License-Identifier: Apache-2.0
"""The role that samples: groups of responses for prompts, or ticks of an environment."""

from collections.abc import Iterable, Iterator
from typing import Any

from m2flow.config import Config
from m2flow.data.films import Film
from m2flow.data.samples import Group, Prompt
from m2flow.data.trajectories import Trajectories
from m2flow.engines.base import Engine, SamplingConfig
from m2flow.errors import FlowError
from m2flow.flow import tallies
from m2flow.flow.environment import Env
from m2flow.registry import EngineConfig, build
from m2flow.runtime.calls import everywhere

EVALUATION_SEED = 2**62
"""Of the episodes of evaluations, which no run begins with."""


class _Parts(Config):
    """Checks what a rollout is made of."""

    engine: EngineConfig
    """What generates."""
    sampling: SamplingConfig
    """How the next token is drawn."""


class Rollout:
    """Samples from ``policy`` with an engine.

    Args:
        policy: what to sample from.
        engine: an id (``"hf"``), a mapping of its ``name`` and options, or its Config; left out, the policy's own.
        sampling: how the next token is drawn, unless a call says otherwise: a SamplingConfig or a mapping.
        seed: of all samples; left out, the run's.

    Raises:
        ConfigError: no such engine, or an option that it does not have.
    """

    context: Any = None
    max_slots: int | None = None
    """Any number of slots can share the prompts."""

    def __init__(self, policy: Any, *, engine: Any = None, sampling: Any = None, seed: int | None = None) -> None:
        parts: Any = _Parts.from_dict({"engine": engine or policy.engine, "sampling": sampling or {}})
        self.engine: Engine = build(parts.engine, policy)
        self.sampling: SamplingConfig = parts.sampling
        self.seed = seed

    def generate(
        self, prompts: Iterable[Prompt], samples_per_prompt: int = 8, *, sampling: SamplingConfig | None = None
    ) -> Iterator[Group]:
        """One group for each prompt, in the order in which they finish; ``sampling`` overrides the role's own.

        For a greedy evaluation give ``samples_per_prompt=1`` and a ``sampling`` of temperature 0.

        Raises:
            EngineError: a prompt does not fit in the context, or the weights moved on without ``load_weights``.
        """
        groups = self.engine.generate(
            prompts,
            samples_per_prompt=samples_per_prompt,
            sampling=self.sampling if sampling is None else sampling,
            seed=self._seed(),
            iteration=0 if self.context is None else self.context.iteration,
        )
        # A generator, which is what makes the call a stream of groups.
        return (group for group in groups)

    def interact(self, env: Env, *, steps: int | None = None, episodes: int | None = None) -> Trajectories:
        """Act in every row of ``env``.

        Args:
            env: where; its rows go on where the last call ended.
            steps: ticks of each row.
            episodes: instead, so many whole episodes of each row, all of them new.

        Raises:
            FlowError: not exactly one of ``steps`` and ``episodes``, or less than one.
            EngineError: the policy's engine does not act, or the weights moved on without ``load_weights``.
            SimulatorError: the simulator cannot run here.
        """
        if (steps is None) == (episodes is None) or (steps or episodes or 0) < 1:
            raise FlowError(f"got steps={steps}, episodes={episodes}: give one of them, at least 1")
        env.begin(self._seed(), anew=episodes is not None)
        return self.engine.interact(env.stepper, steps=steps, episodes=episodes)

    def evaluate(self, env: Env, episodes: int = 100, *, seed: int = EVALUATION_SEED) -> dict[str, float]:
        """The most likely actions in ``episodes`` episodes, always the same ones, each counted once; ``env`` stays.

        Returns:
            Means of return, length and success, the latter with its 95 % confidence interval (Wilson).

        Raises:
            FlowError: less than one episode.
            EngineError: as ``interact``.
        """
        if episodes < 1:
            raise FlowError(f"got episodes={episodes}, expected at least 1")
        with env.elsewhere(seed):
            return tallies.of_evaluation(self.engine.evaluate(env.stepper, episodes=episodes))

    def film(self, env: Env, episodes: int = 1, *, seed: int = EVALUATION_SEED) -> Film:
        """The most likely actions in the first ``episodes`` episodes of an evaluation's first row; ``env`` stays.

        Raises:
            FlowError: less than one episode.
            EngineError: as ``interact``.
            SimulatorError: the simulator cannot draw here.
            M2flowError: the package that encodes films is not installed.
        """
        if episodes < 1:
            raise FlowError(f"got episodes={episodes}, expected at least 1")
        with env.elsewhere(seed):
            return self.engine.film(env.stepper, episodes=episodes)

    def _seed(self) -> int:
        if self.seed is not None:
            return self.seed
        return 0 if self.context is None else self.context.seed

    @everywhere
    def load_weights(self, learner: Any) -> None:
        """Take over the learner's weights; later samples carry its version.

        Raises:
            EngineError: the learner trains another model.
        """
        self.engine.load_weights(learner.policy)
