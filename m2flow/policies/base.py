# SPDX-License-Identifier: Apache-2.0
"""What a policy is to the parts that train it, checkpoint it and hand its weights on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from m2flow.errors import CheckpointError, ModelError
from m2flow.registry import Plugin
from m2flow.spec import Interface

Observed = Mapping[str, Tensor]
"""Arrays of observations by the name of their Spec, with any leading axes."""


class Policy(Plugin, ABC):
    """A model that acts. Making one loads nothing; the weights are read when they are first used."""

    engine: ClassVar[str]
    """The engine that samples from it, unless the user chooses another."""

    version: int = 0
    """Number of optimizer updates that made the present weights; the learner counts it up."""

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that an optimizer may change, by name, always in the same order."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors of ``trainable``: all that training changes."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned.

        Raises:
            CheckpointError: names, shapes or types differ from this policy's.
        """

    def checkpoint_activations(self, enabled: bool) -> None:
        """Whether the backward pass computes each layer's activations again instead of keeping them.

        Raises:
            ModelError: the model cannot.
        """
        if enabled:
            raise ModelError(f"the policy '{self.name}' cannot compute its activations again: leave that option out")

    @abstractmethod
    def save(self, path: Path, *, merged: bool = True) -> None:
        """Write the policy in a format that other software reads."""


class Values(ABC):
    """The value function beside an ``Actor``."""

    module: nn.Module
    """Holds what ``trainable`` names."""

    @abstractmethod
    def values(self, observations: Observed) -> Float[Tensor, "*leading"]:
        """The value of each state."""

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """See ``Policy.trainable``; no parameter that is the policy's too."""

    def state(self) -> dict[str, Tensor]:
        """See ``Policy.state``."""
        return {name: weight.detach() for name, weight in self.trainable().items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See ``Policy.load_state``."""
        copy_tensors(state, into=self.state())


class ActionValues(ABC):
    """Critics beside an ``Actor`` that value its actions."""

    module: nn.Module
    """Holds all that training changes."""

    @abstractmethod
    def values(self, observations: Observed, actions: Float[Tensor, "n *action"]) -> Float[Tensor, "K n"]:
        """What each critic says of ``actions``, which are as ``Actor.bounded`` returns them."""


class Actor(Policy):
    """A policy that controls: from observations to one action for each environment.

    ``actions`` are as the policy draws them, ``env_actions`` what an environment is given: within its limits.
    """

    engine = "acting"

    def __init__(self, config: Any, interface: Interface, *, seed: int = 0) -> None:
        self.config = config
        self.interface = interface
        self.seed = seed
        self.version = 0

    @abstractmethod
    def noise(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """[num, ...] float32: all that is random in ``num`` actions."""

    @abstractmethod
    def act(
        self, observations: Observed, noise: Tensor | None
    ) -> tuple[Shaped[Tensor, "N *action"], Float[Tensor, "N"]]:
        """Actions and their log-probs (nats); without ``noise`` the most likely ones."""

    @abstractmethod
    def evaluate(
        self, observations: Observed, actions: Shaped[Tensor, "n *action"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """Log-probs of ``actions`` now, and the entropies of what they were drawn from (nats)."""

    @abstractmethod
    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """[N, ...] as ``interface.action`` says."""

    def bounded(self, actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n *action"]:
        """``actions`` on the scale of -1 to 1 between the environment's limits, with gradient: what critics of actions
        read.

        Raises:
            ModelError: this policy draws choices, or beyond the limits.
        """
        raise ModelError(f"the policy '{self.name}' draws no actions within limits, which this algorithm is for")

    def action_critic(self, *, num: int, layer_norm: bool) -> ActionValues:
        """``num`` new critics of actions; equal seeds make equal ones. With ``layer_norm`` they normalise each layer.

        Raises:
            ModelError: see ``bounded``.
        """
        raise ModelError(f"the policy '{self.name}' has no critics of actions, which this algorithm wants")

    @abstractmethod
    def critic(self) -> Values:
        """A new value function for this policy; equal seeds make equal ones."""

    @abstractmethod
    def reference(self) -> "Actor":
        """This policy as it is now, frozen."""

    @abstractmethod
    def observe(self, observations: Observed) -> None:
        """Take [n, ...] states into the statistics that observations are normalised by, where there are such."""


def copy_tensors(state: Mapping[str, Tensor], *, into: Mapping[str, Tensor]) -> None:
    """Copy ``state`` into tensors of the same names.

    Raises:
        CheckpointError: names, shapes or types differ.
    """
    wrong = sorted(into.keys() ^ state.keys())
    wrong += [
        k for k in into.keys() & state.keys() if (into[k].shape, into[k].dtype) != (state[k].shape, state[k].dtype)
    ]
    if wrong:
        raise CheckpointError(
            f"these weights belong to another model: {len(wrong)} of {len(into)} differ in name, shape or type "
            f"({', '.join(wrong[:3])}); resume with the model options of the run that wrote them"
        )
    for name, tensor in into.items():
        tensor.copy_(state[name])
