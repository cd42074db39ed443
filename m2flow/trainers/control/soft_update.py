# SPDX-License-Identifier: Apache-2.0
"""What an off-policy algorithm minimises: losses of ticks drawn from a memory."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module, Parameter

from m2flow.algorithms.base import Loss, OffPolicy, Replayed
from m2flow.algorithms.formulas import soft
from m2flow.data.replay import Replay
from m2flow.data.trajectories import Trajectories
from m2flow.policies.base import Actor, copy_tensors

_SEEN, _NEXT = "seen/", "next/"
"""Beginnings of the names of observations in the memory."""


class SoftUpdate:
    """What stands beside the policy: critics, targets, temperature, memory. Implements ``trainers.base.Objective``.

    Args:
        policy: whose actions are valued, drawn within limits.
        algorithm: what is minimised.

    Raises:
        ModelError: the policy draws choices, or beyond the limits.
        DataError: the memory's folder holds another one.
    """

    def __init__(self, policy: Actor, algorithm: OffPolicy) -> None:
        c = self.config = algorithm.config
        self.policy, self.algorithm = policy, algorithm
        self.critic, self.target = (
            policy.action_critic(num=c.num_critics, layer_norm=c.critic_layer_norm) for _ in range(2)
        )
        self.target.module.requires_grad_(False)
        device = next(iter(policy.trainable().values())).device
        for critic in (self.critic, self.target):
            critic.module.to(device)
        self.log_temperature = Parameter(torch.full((1,), math.log(c.initial_temperature), device=device))
        self.memory = Replay(c.capacity, folder=c.folder)
        self.seed = 0
        """Of all that is drawn, with the number of the step."""
        self._step = self._part = 0

    @property
    def module(self) -> Module:
        """The critics."""
        return self.critic.module

    def trainable(self) -> dict[str, Parameter]:
        """Parameters of the critics, and the temperature's logarithm where it is learned."""
        found = dict(self.critic.module.named_parameters())
        return {**found, "log_temperature": self.log_temperature} if self.config.learn_temperature else found

    def remember(self, trajectories: Trajectories) -> None:
        """Take the counted ticks into the memory."""
        self.memory.add(transitions(trajectories, self.policy))

    @property
    def is_ready(self) -> bool:
        """Whether the memory holds enough to begin."""
        return len(self.memory) >= self.config.start_ticks

    def loss(self, num: int, *, share: float) -> Loss:
        """See ``Objective.loss``."""
        c, rng = self.config, np.random.default_rng([self.seed, self._step, self._part])
        self._part += 1
        drawn = {name: torch.from_numpy(array).to(self._device) for name, array in self.memory.draw(rng, num).items()}
        seen = {k.removeprefix(_SEEN): x for k, x in drawn.items() if k.startswith(_SEEN)}
        temperature = self.log_temperature.detach().exp()[0]
        targets = self._targets(drawn, rng, temperature=temperature)
        values = self.critic.values(seen, drawn["actions"])
        critic = self.algorithm.critic_loss(values, targets) * share
        sums = {"critic/value_mean": values.detach().mean().item() * share}
        if self._step % c.policy_every:
            return Loss(policy=torch.zeros((), device=self._device), value=critic, sums=sums)
        actions, logprobs = self.policy.act(seen, self._noise(rng, num))
        with _frozen(self.critic.module):
            valued = self.critic.values(seen, self.policy.bounded(actions))
        policy = self.algorithm.policy_loss(valued, logprobs, temperature=temperature)
        if c.learn_temperature:
            policy = policy + self._temperature_loss(logprobs.detach())
        sums |= {
            "policy/entropy": -logprobs.detach().mean().item() * share,
            "policy/temperature": temperature.item() * share,
        }
        return Loss(policy=policy * share, value=critic, sums=sums)

    @torch.no_grad()
    def stepped(self) -> None:
        """See ``Objective.stepped``: targets follow."""
        self._step, self._part = self._step + 1, 0
        targets, online = (critic.module.parameters() for critic in (self.target, self.critic))
        soft.move_targets(targets, online, tau=self.config.tau)

    def state(self) -> dict[str, Any]:
        """All but the policy: critics, targets, temperature, memory and the number of the step."""
        return {
            "critic": dict(self.critic.module.state_dict()),
            "target": dict(self.target.module.state_dict()),
            "log_temperature": self.log_temperature.detach(),
            "memory": self.memory.state(),
            "step": self._step,
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it belongs to other critics, or to another memory.
        """
        copy_tensors(state["critic"], into=dict(self.critic.module.state_dict()))
        copy_tensors(state["target"], into=dict(self.target.module.state_dict()))
        self.log_temperature.copy_(state["log_temperature"])
        self.memory.load_state(state["memory"])
        self._step = int(state["step"])

    @torch.no_grad()
    def _targets(self, drawn: Mapping[str, Tensor], rng: np.random.Generator, *, temperature: Tensor) -> Tensor:
        following = {k.removeprefix(_NEXT): x for k, x in drawn.items() if k.startswith(_NEXT)}
        actions, logprobs = self.policy.act(following, self._noise(rng, len(drawn["actions"])))
        values = self.target.values(following, self.policy.bounded(actions))
        if self.config.num_targets is not None:
            values = values[torch.from_numpy(rng.permutation(len(values))[: self.config.num_targets])]
        replayed = Replayed(rewards=drawn["rewards"], dones=drawn["dones"], next_values=values, next_logprobs=logprobs)
        return self.algorithm.targets(replayed, temperature=temperature)

    def _temperature_loss(self, logprobs: Tensor) -> Tensor:
        num_actions = math.prod(self.policy.interface.action.shape)
        return self.algorithm.temperature_loss(self.log_temperature[0], logprobs, num_actions=num_actions)

    def _noise(self, rng: np.random.Generator, num: int) -> Tensor:
        return torch.from_numpy(self.policy.noise(rng, num)).to(self._device)

    @property
    def _device(self) -> torch.device:
        return self.log_temperature.device


def transitions(trajectories: Trajectories, policy: Actor) -> dict[str, np.ndarray]:
    """[n, ...] of the ``n`` counted ticks: observations before and after, actions within limits, rewards, and whether
    the task itself ended there.

    After a tick that ended an episode comes the observation that it ended with, not that of the next episode.
    """
    t, found = trajectories, dict[str, np.ndarray]()
    for name, array in t.observations.items():
        following = np.concatenate([array[1:], t.last_observations[name][None]])
        following[t.ended[:, 0], t.ended[:, 1]] = t.final_observations[name]
        found |= {f"{_SEEN}{name}": array[t.mask], f"{_NEXT}{name}": following[t.mask]}
    with torch.no_grad():
        actions = policy.bounded(torch.from_numpy(t.actions[t.mask])).numpy()
    rewards, dones = t.rewards[t.mask], t.terminated[t.mask].astype(np.float32)
    return {**found, "actions": actions, "rewards": rewards, "dones": dones}


@contextmanager
def _frozen(module: Module) -> Iterator[None]:
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)
