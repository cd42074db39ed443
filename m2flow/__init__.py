# SPDX-License-Identifier: Apache-2.0
"""m2flow: write the training flow as a script; the system runs it.

Everything a script needs is a name of this module, loaded when it is first used, so that ``import m2flow`` costs
nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from m2flow.cli.script import cli as cli
    from m2flow.config import Config as Config
    from m2flow.data.prompts import MathPrompts as MathPrompts
    from m2flow.data.prompts import PromptsConfig as PromptsConfig
    from m2flow.data.samples import Group as Group
    from m2flow.data.samples import Prompt as Prompt
    from m2flow.data.samples import Sample as Sample
    from m2flow.engines.base import SamplingConfig as SamplingConfig
    from m2flow.flow.environment import Env as Env
    from m2flow.flow.learner import Learner as Learner
    from m2flow.flow.reward import MathReward as MathReward
    from m2flow.flow.reward import Reward as Reward
    from m2flow.flow.rollout import Rollout as Rollout
    from m2flow.flow.run import ControlRunConfig as ControlRunConfig
    from m2flow.flow.run import Run as Run
    from m2flow.flow.run import RunConfig as RunConfig
    from m2flow.flow.run import TextRunConfig as TextRunConfig
    from m2flow.flow.stream import Stream as Stream
    from m2flow.policies.llm import Llm as Llm
    from m2flow.policies.mlp import Mlp as Mlp
    from m2flow.registry import Choice as Choice
    from m2flow.registry import build as build
    from m2flow.runtime.calls import everywhere as everywhere

    # To a type checker a choice is anything that names a plug-in: an id, an id with options, or its Config.
    AlgorithmConfig = Any
    EngineConfig = Any
    EnvConfig = Any
    PolicyConfig = Any
    TrainerConfig = Any

__version__ = "0.1.0"

_HOMES = {
    "TrainerConfig": "m2flow.registry",
    "EngineConfig": "m2flow.registry",
    "AlgorithmConfig": "m2flow.registry",
    "EnvConfig": "m2flow.registry",
    "PolicyConfig": "m2flow.registry",
    "build": "m2flow.registry",
    "cli": "m2flow.cli.script",
    "everywhere": "m2flow.runtime.calls",
    "Choice": "m2flow.registry",
    "Config": "m2flow.config",
    "ControlRunConfig": "m2flow.flow.run",
    "Env": "m2flow.flow.environment",
    "Group": "m2flow.data.samples",
    "Learner": "m2flow.flow.learner",
    "Llm": "m2flow.policies.llm",
    "MathPrompts": "m2flow.data.prompts",
    "MathReward": "m2flow.flow.reward",
    "Prompt": "m2flow.data.samples",
    "Mlp": "m2flow.policies.mlp",
    "PromptsConfig": "m2flow.data.prompts",
    "Reward": "m2flow.flow.reward",
    "Rollout": "m2flow.flow.rollout",
    "Run": "m2flow.flow.run",
    "RunConfig": "m2flow.flow.run",
    "Sample": "m2flow.data.samples",
    "SamplingConfig": "m2flow.engines.base",
    "Stream": "m2flow.flow.stream",
    "TextRunConfig": "m2flow.flow.run",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'm2flow' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
