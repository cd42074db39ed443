# SPDX-License-Identifier: Apache-2.0
"""What a network's outputs mean as actions: a Gaussian, one that is squashed by tanh, or one of several choices."""

import math
from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional

from m2flow.errors import ModelError
from m2flow.spec import Spec

Std = Literal["free", "state"]
"""Whether the deviation is a parameter of its own or an output of the network."""

_LOG_STD_RANGE = (-5.0, 2.0)
"""Of deviations that the network puts out."""


class Head(nn.Module, ABC):
    """From [*leading, num_outputs] outputs to a distribution over actions."""

    num_outputs: int

    @abstractmethod
    def noise(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """See ``Actor.noise``."""

    @abstractmethod
    def draw(self, outputs: Float[Tensor, "N outputs"], noise: Tensor | None) -> Shaped[Tensor, "N *action"]:
        """Actions; without noise the most likely ones."""

    @abstractmethod
    def logprobs(self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n"]:
        """Of ``actions``, nats."""

    @abstractmethod
    def entropies(
        self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]
    ) -> Float[Tensor, "n"]:
        """Of the distributions, nats."""

    @abstractmethod
    def bounded(self, actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n *action"]:
        """See ``Actor.bounded``."""

    @abstractmethod
    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """See ``Actor.env_actions``."""


class Choices(Head):
    """A softmax over the choices that ``spec`` has."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.num_outputs = spec.num_values

    def noise(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """Of Gumbel's distribution: the largest sum with a logit is a draw from the softmax."""
        return rng.gumbel(size=(num, self.num_outputs)).astype(np.float32)

    def draw(self, outputs: Float[Tensor, "N outputs"], noise: Tensor | None) -> Shaped[Tensor, "N *action"]:
        """See ``Head.draw``."""
        return (outputs if noise is None else outputs + noise).argmax(-1)

    def logprobs(self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n"]:
        """See ``Head.logprobs``."""
        return outputs.log_softmax(-1).gather(-1, actions[..., None])[..., 0]

    def entropies(
        self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]
    ) -> Float[Tensor, "n"]:
        """See ``Head.entropies``."""
        logprobs = outputs.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)

    def bounded(self, actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n *action"]:
        """There are none."""
        raise ModelError("choices have no values between limits, which this algorithm learns from: take ppo or grpo")

    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """They are choices already."""
        return actions


class Gaussian(Head):
    """Independent Gaussians; where ``spec`` has finite limits, -1 to 1 stands for them.

    Args:
        spec: the action.
        std: see ``Std``.
        initial_log_std: log of the deviation at first, in units of half the range between the limits.
        squash: by tanh, so that every draw is within the limits; else draws beyond them are clipped for the
            environment, and their log-probs stay those of the Gaussian.

    Raises:
        ModelError: ``squash`` without finite limits.
    """

    def __init__(self, spec: Spec, *, std: Std, initial_log_std: float, squash: bool) -> None:
        super().__init__()
        self.spec, self.squash = spec, squash
        self.width = math.prod(spec.shape)
        self.num_outputs = 2 * self.width if std == "state" else self.width
        self.initial_log_std = initial_log_std
        self.log_std = nn.Parameter(torch.full((self.width,), initial_log_std)) if std == "free" else None
        low, high = (np.broadcast_to(limit, spec.shape).astype(np.float64) for limit in (spec.low, spec.high))
        self._bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
        if squash and not self._bounded:
            raise ModelError(f"the action '{spec.name}' has no finite limits to squash to: set squash=False")
        self._centre, self._half = ((high + low) / 2, (high - low) / 2) if self._bounded else (0.0, 1.0)

    def noise(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """Standard normal."""
        return rng.standard_normal((num, self.width), dtype=np.float32)

    def _normal(self, outputs: Float[Tensor, "n outputs"]) -> Normal:
        if self.log_std is not None:
            return Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False)
        mean, raw = outputs.chunk(2, -1)
        return Normal(mean, (raw + self.initial_log_std).clamp(*_LOG_STD_RANGE).exp(), validate_args=False)

    def draw(self, outputs: Float[Tensor, "N outputs"], noise: Tensor | None) -> Shaped[Tensor, "N *action"]:
        """Before they are squashed."""
        normal = self._normal(outputs)
        drawn = normal.loc if noise is None else normal.loc + normal.scale * noise
        return drawn.unflatten(-1, self.spec.shape) if len(self.spec.shape) > 1 else drawn

    def logprobs(self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]) -> Float[Tensor, "n"]:
        """Of the squashed action, where it is squashed (arXiv 1812.05905, appendix C), on the scale of -1 to 1."""
        flat = actions.reshape(*outputs.shape[:-1], self.width)
        found = self._normal(outputs).log_prob(flat).sum(-1)
        return found - _log_slope(flat).sum(-1) if self.squash else found

    def entropies(
        self, outputs: Float[Tensor, "n outputs"], actions: Shaped[Tensor, "n *action"]
    ) -> Float[Tensor, "n"]:
        """Where squashed, estimated with the one action that was drawn: there is no closed form."""
        found = self._normal(outputs).entropy().sum(-1)
        if not self.squash:
            return found
        return found + _log_slope(actions.reshape(*outputs.shape[:-1], self.width)).sum(-1)

    def bounded(self, actions: Float[Tensor, "n *action"]) -> Float[Tensor, "n *action"]:
        """Squashed, where they are."""
        if not self.squash:
            raise ModelError(
                "this algorithm learns from actions within limits, these are drawn beyond them: set policy.squash"
            )
        return actions.tanh()

    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """See ``Actor.env_actions``."""
        if not self._bounded:
            return np.clip(actions, self.spec.low, self.spec.high).astype(self.spec.dtype)
        inside = np.tanh(actions) if self.squash else np.clip(actions, -1, 1)
        made = (self._centre + self._half * inside).astype(self.spec.dtype)
        # The sum may round to the number beyond a limit.
        return np.clip(made, self.spec.low, self.spec.high, dtype=self.spec.dtype)


def _log_slope(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 - tanh(x)^2), exact far from 0 too."""
    return 2 * (math.log(2) - x - functional.softplus(-2 * x))
