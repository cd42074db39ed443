# SPDX-License-Identifier: Apache-2.0
"""A policy for states: some layers between the numbers that are observed and an action."""

import copy
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from m2flow import config
from m2flow.errors import ModelError
from m2flow.policies.base import ActionValues, Actor, Observed, Values, copy_tensors
from m2flow.policies.control.heads import Choices, Gaussian, Head, Std
from m2flow.policies.control.networks import Activation, Ensemble, layers
from m2flow.policies.control.statistics import Normalizer
from m2flow.spec import Interface


class Mlp(Actor):
    """Layers over all observed numbers, one after another; discrete actions by softmax, others Gaussian.

    Args:
        config: its Config.
        interface: what is observed and done.
        seed: of the first weights.

    Raises:
        ModelError: an image or a text is observed, or the action cannot be drawn as configured.
    """

    class Config(config.Config):
        """Options of ``mlp``."""

        hidden: tuple[int, ...] = (256, 256, 256)
        """Widths of the layers in between, of the critic's too."""
        activation: Activation = "tanh"
        """What stands between two layers."""
        std: Std = "free"
        """Whether a Gaussian's deviation is a parameter of its own, or an output that depends on the state."""
        initial_log_std: float = -0.5
        """Log of that deviation at first; 1 is half the range between the action's limits."""
        squash: bool = False
        """Draw through tanh, always within the limits; else what is drawn beyond them is clipped."""
        critic: Literal["separate", "shared"] = "separate"
        """Whether the critic has layers of its own, or reads the policy's."""
        normalize_observations: bool = False
        """By running mean and deviation of all states that were learned from."""

    def __init__(self, config: Any, interface: Interface, *, seed: int = 0) -> None:
        super().__init__(config, interface, seed=seed)
        for spec in interface.observations:
            if spec.is_image or np.dtype(spec.dtype).kind not in "fiub":
                what = "an image" if spec.is_image else f"of type {spec.dtype}"
                raise ModelError(f"'{spec.name}' is {what}, 'mlp' reads numbers: choose another policy")

    @cached_property
    def width(self) -> int:
        """How many numbers are observed."""
        return sum(int(np.prod(spec.shape, dtype=int)) for spec in self.interface.observations)

    @cached_property
    def module(self) -> nn.ModuleDict:
        """``body``, ``head``, and ``normalizer`` where there is one; made when first used."""
        c, rng = self.config, torch.Generator().manual_seed(self.seed)
        head = self._head()
        widths = (self.width, *c.hidden, head.num_outputs)
        parts: dict[str, nn.Module] = {
            "body": layers(widths, activation=c.activation, last_gain=0.01, rng=rng),
            "head": head,
        }
        if c.normalize_observations:
            parts["normalizer"] = Normalizer(self.width)
        return nn.ModuleDict(parts)

    def _head(self) -> Head:
        action, c = self.interface.action, self.config
        if action.is_discrete:
            return Choices(action)
        if np.dtype(action.dtype).kind != "f":
            raise ModelError(
                f"the action '{action.name}' is {action.dtype} {action.shape}: 'mlp' draws numbers or one choice"
            )
        return Gaussian(action, std=c.std, initial_log_std=c.initial_log_std, squash=c.squash)

    @property
    def head(self) -> Any:
        """What outputs mean as actions."""
        return self.module["head"]

    def flat(self, observations: Observed) -> Float[Tensor, "n width"]:
        """All observed numbers of each state, normalised where configured."""
        x = self._numbers(observations)
        return self.module["normalizer"](x) if self.config.normalize_observations else x

    def _numbers(self, observations: Observed) -> Float[Tensor, "n width"]:
        specs = self.interface.observations
        leading = observations[specs[0].name].dim() - len(specs[0].shape)
        parts = [observations[s.name].float() for s in specs]
        flat = [part.flatten(leading) if part.dim() > leading else part[..., None] for part in parts]
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)

    def noise(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """See ``Actor.noise``."""
        return self.head.noise(rng, num)

    def act(
        self, observations: Observed, noise: Tensor | None
    ) -> tuple[Shaped[Tensor, "N *action"], Float[Tensor, "N"]]:
        """See ``Actor.act``."""
        outputs = self.module["body"](self.flat(observations))
        actions = self.head.draw(outputs, noise)
        return actions, self.head.logprobs(outputs, actions)

    def evaluate(
        self, observations: Observed, actions: Shaped[Tensor, "n *action"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """See ``Actor.evaluate``."""
        outputs = self.module["body"](self.flat(observations))
        return self.head.logprobs(outputs, actions), self.head.entropies(outputs, actions)

    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """See ``Actor.env_actions``."""
        return self.head.env_actions(actions)

    def bounded(self, actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n *action"]:
        """See ``Actor.bounded``."""
        return self.head.bounded(actions)

    def critic(self) -> Values:
        """See ``Actor.critic``."""
        return _StateValues(self)

    def action_critic(self, *, num: int, layer_norm: bool) -> ActionValues:
        """See ``Actor.action_critic``."""
        if self.config.critic == "shared":
            raise ModelError("critics of actions have layers of their own: leave policy.critic out, or set separate")
        return _StateActionValues(self, num=num, layer_norm=layer_norm)

    def reference(self) -> "Mlp":
        """See ``Actor.reference``."""
        frozen = copy.deepcopy(self)
        frozen.module.requires_grad_(False)
        return frozen

    def observe(self, observations: Observed) -> None:
        """See ``Actor.observe``."""
        if self.config.normalize_observations:
            normalizer: Any = self.module["normalizer"]
            normalizer.observe(self._numbers(observations))

    def trainable(self) -> dict[str, nn.Parameter]:
        """See ``Policy.trainable``."""
        return dict(self.module.named_parameters())

    def state(self) -> dict[str, Tensor]:
        """The parameters, and the statistics of observations where there are some."""
        return {name: tensor.detach() for name, tensor in self.module.state_dict(keep_vars=True).items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """See ``Policy.load_state``."""
        copy_tensors(state, into=self.state())

    def save(self, path: Path, *, merged: bool = True) -> None:
        """Write ``policy.safetensors`` into the folder ``path``.

        Raises:
            ModelError: ``merged`` is false: there are no adapters.
        """
        from safetensors.torch import save_file

        if not merged:
            raise ModelError("'mlp' has no adapters to write on their own: save it whole")
        path.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in self.state().items()}, path / "policy.safetensors")


class _StateValues(Values):
    """Values by layers of its own, or by one layer over the policy's last hidden one."""

    def __init__(self, policy: Mlp) -> None:
        c, rng = policy.config, torch.Generator().manual_seed(policy.seed + 1)
        self.policy = policy
        self.is_shared = c.critic == "shared" and bool(c.hidden)
        widths = (c.hidden[-1], 1) if self.is_shared else (policy.width, *c.hidden, 1)
        self.layers = layers(widths, activation=c.activation, last_gain=1.0, rng=rng)
        self.module = self.layers

    def values(self, observations: Observed) -> Float[Tensor, "*leading"]:
        """See ``Values.values``."""
        x = self.policy.flat(observations)
        if self.is_shared:
            body: Any = self.policy.module["body"]
            x = body[:-1](x)
        return self.layers(x)[..., 0]

    def trainable(self) -> dict[str, nn.Parameter]:
        """See ``Values.trainable``."""
        return dict(self.layers.named_parameters())


class _StateActionValues(ActionValues):
    """Layers of their own over the observed numbers and the action's."""

    def __init__(self, policy: Mlp, *, num: int, layer_norm: bool) -> None:
        c, rng = policy.config, torch.Generator().manual_seed(policy.seed + 1)
        self.policy = policy
        widths = (policy.width + int(np.prod(policy.interface.action.shape, dtype=int)), *c.hidden, 1)
        self.module = Ensemble(widths, num, activation=c.activation, layer_norm=layer_norm, rng=rng)

    def values(self, observations: Observed, actions: Float[Tensor, "n *action"]) -> Float[Tensor, "K n"]:
        """See ``ActionValues.values``."""
        return self.module(torch.cat([self.policy.flat(observations), actions.flatten(1)], -1))[..., 0]
