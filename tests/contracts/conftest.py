# SPDX-License-Identifier: Apache-2.0
"""A real learner of the model that ships, in a process group of one rank for the trainers that want one."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from m2flow.engines.base import SamplingConfig
from m2flow.flow.learner import Learner
from m2flow.policies.llm import Llm
from m2flow.trainers.sharding import ranks


@pytest.fixture(scope="session")
def tiny_module() -> Any:
    """The module of the model that ships, read once."""
    return Llm(Llm.Config(model="tiny")).module


@pytest.fixture(scope="module")
def group_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as the only rank of a group."""
    meeting: Path = tmp_path_factory.mktemp("ranks") / "meeting"
    ranks.join(0, 1, init_method=f"file://{meeting}")
    yield
    ranks.leave()


@pytest.fixture(scope="session")
def make_learner(tiny_module: Any) -> Callable[..., Learner]:
    """``make_learner(trainer name, algorithm, sampling=None, **trainer options)``."""

    def make(trainer: str, algorithm: Any = "grpo", *, sampling: Any = None, **options: Any) -> Learner:
        policy = Llm(Llm.Config(model="tiny"))
        policy.module, policy._adapter = copy.deepcopy(tiny_module), None
        # With a large epsilon AdamW follows the gradient's size, which it would hide otherwise.
        chosen = {"name": trainer, "learning_rate": 1e-3, "critic_learning_rate": 1e-3, "eps": 1e-2, **options}
        sampling = sampling or SamplingConfig(max_new_tokens=8)
        return Learner(policy, algorithm=algorithm, trainer=chosen, sampling=sampling)

    return make


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Learner], dict[str, torch.Tensor]]:
    """Copies of all trained weights, whole."""

    def weights(learner: Learner) -> dict[str, torch.Tensor]:
        models, gathered = learner.models, learner.trainer.gathered
        found = {name: x.detach().clone() for name, x in gathered(models.policy.trainable())}
        if models.critic is not None:
            found |= {f"critic.{n}": x.detach().clone() for n, x in gathered(models.critic.trainable())}
        return found

    return weights
