# SPDX-License-Identifier: Apache-2.0
"""Soft actor-critic: off-policy, with critics of actions and a temperature that keeps the policy random enough."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from m2flow.algorithms.base import OffPolicy, OffPolicyConfig, Replayed
from m2flow.algorithms.formulas import soft


class Sac(OffPolicy):
    """Soft actor-critic (arXiv 1812.05905), with the options of REDQ (arXiv 2101.05982) and RLPD (arXiv 2302.02948)."""

    class Config(OffPolicyConfig):
        """Options of SAC."""

        gamma: float = Field(default=0.99, ge=0, le=1)
        """Discount of a tick."""
        policy_value: Literal["min", "mean"] = Field(default="min")
        """Which of the critics' values the policy raises: the least, or their mean."""
        entropy_backup: bool = Field(default=True)
        """Whether critics count future entropy as reward."""
        target_entropy: float | None = Field(default=None)
        """Entropy that the temperature keeps, nats, of actions between -1 and 1. None: -1 for each number of an
        action."""

        def problems(self) -> list[str]:
            """A target that nothing follows."""
            idle = not self.learn_temperature and self.target_entropy is not None
            found = f"target_entropy is {self.target_entropy}, which learn_temperature=False ignores: leave one out"
            return super().problems() + [found] * idle

    def targets(self, replayed: Replayed, *, temperature: Float[Tensor, ""]) -> Float[Tensor, "B"]:
        """See ``OffPolicy.targets``; equations 2 and 3."""
        alpha = temperature if self.config.entropy_backup else torch.zeros_like(temperature)
        return soft.soft_targets(**vars(replayed), alpha=alpha, gamma=self.config.gamma)

    def critic_loss(self, values: Float[Tensor, "K B"], targets: Float[Tensor, "B"]) -> Float[Tensor, ""]:
        """Half the mean squared error, summed over the critics; equation 5."""
        return soft.critic_loss(values, targets)

    def policy_loss(
        self, values: Float[Tensor, "K B"], logprobs: Float[Tensor, "B"], *, temperature: Float[Tensor, ""]
    ) -> Float[Tensor, ""]:
        """Equation 9."""
        raised = values if self.config.policy_value == "min" else values.mean(0, keepdim=True)
        return soft.actor_loss(logprobs, raised, alpha=temperature)

    def temperature_loss(
        self, log_temperature: Float[Tensor, ""], logprobs: Float[Tensor, "B"], *, num_actions: int
    ) -> Float[Tensor, ""]:
        """Equation 18, of the logarithm itself, as in the authors' code."""
        given = self.config.target_entropy
        wanted = -float(num_actions) if given is None else given
        return soft.alpha_loss(log_temperature, logprobs, target_entropy=wanted)
