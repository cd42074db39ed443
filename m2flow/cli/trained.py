# SPDX-License-Identifier: Apache-2.0
"""A policy out of a run's folder: evaluated, or written for others to use."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from m2flow.checkpoint.store import Store
from m2flow.cli.overrides import parse
from m2flow.cli.script import config_class, load_script
from m2flow.config import Config
from m2flow.data.films import Film, require_encoder
from m2flow.data.prompts import Prompts, PromptsConfig
from m2flow.engines.base import Engine, SamplingConfig
from m2flow.envs.base import Env as Simulator
from m2flow.errors import CheckpointError, ConfigError
from m2flow.flow.environment import Env
from m2flow.flow.folder import RunFolder
from m2flow.flow.reward import MathReward
from m2flow.flow.rollout import Rollout
from m2flow.policies.base import Actor, Policy
from m2flow.registry import build
from m2flow.runtime import saved

_NUM_EPISODES = 100
"""Of an evaluation, unless the user says otherwise."""


@dataclass(frozen=True)
class Trained:
    """What a run left: its settings, its script, and the policy with the weights of one checkpoint."""

    config: Config
    script: ModuleType
    policy: Any
    step: int
    """The iteration after which the checkpoint was written."""


def open_run(folder: Path, *, step: int | None = None, script: Path | None = None, argv: Sequence[str] = ()) -> Trained:
    """The policy of a run at ``step`` (the newest checkpoint, unless given), or of an exported model's folder.

    Args:
        script: where the run's script is now, if it was moved; an exported model does not know its own.
        argv: options that differ from those of the run.

    Raises:
        CheckpointError: the folder holds no run, or not this checkpoint.
        ConfigError: the script or an option is wrong, or the configuration has not exactly one policy.
    """
    saved = RunFolder(folder).read_config()
    if "script" not in saved:
        return _open_model(folder, script=script, argv=argv)
    module = load_script(script or Path(saved["script"]))
    config = parse(config_class(module.main), argv, start=saved["config"])
    policy = _policy(config)
    store = Store(folder / "checkpoints", keep=1)
    if not store.steps():
        raise CheckpointError(f"{folder} has no checkpoint yet: let it train longer, or set --checkpoint.every lower")
    state = store.load(step)
    learner = _learner_state(state["roles"], folder)
    with torch.no_grad():
        policy.load_state(learner["policy"])
    policy.version = int(learner["version"])
    return Trained(config=config, script=module, policy=policy, step=int(state["iteration"]))


def _policy(config: Config) -> Any:
    """Of an unloaded model; one that acts is made for the simulator of the same configuration."""
    chosen: Any = _only(config, Policy, what="policy")
    if not issubclass(chosen.owner, Actor):
        return build(chosen)
    with closing(simulated(config, num_rows=1)) as env:
        return build(chosen, env.interface)


def simulated(config: Config, *, num_rows: int) -> Env:
    """What a configuration's policy acts in.

    Raises:
        ConfigError: it has not exactly one simulator.
    """
    return Env(_only(config, Simulator, what="simulator"), num_rows=num_rows)


def _open_model(folder: Path, *, script: Path | None, argv: Sequence[str]) -> Trained:
    if script is None:
        raise ConfigError(f"{folder} is a model, no run: say whose held-out prompts it is to answer, with --script")
    module = load_script(script)
    cls = config_class(module.main)
    name = _name_of_policy(parse(cls, argv))
    config = parse(cls, [*argv, f"--{name}", str(folder)])
    return Trained(config=config, script=module, policy=build(getattr(config, name)), step=0)


def _name_of_policy(config: Config) -> str:
    policy = _only(config, Policy, what="policy")
    return next(name for name in type(config).model_fields if getattr(config, name) is policy)


def _learner_state(roles: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    states = [saved.whole(state) for state in roles.values() if isinstance(state, Mapping)]
    found = [state for state in states if {"policy", "version"} <= set(state)]
    if len(found) != 1:
        raise CheckpointError(f"the checkpoint in {folder} has {len(found)} trained policies, expected one learner's")
    return found[0]


def _nested(config: Config) -> Iterator[Config]:
    for name in type(config).model_fields:
        if isinstance(value := getattr(config, name), Config):
            yield value


def _only(config: Config, owner: type, *, what: str) -> Config:
    """The one nested Config that belongs to a plug-in of class ``owner``."""
    owners = [value for value in _nested(config) if inspect.isclass(c := type(value).owner) and issubclass(c, owner)]
    if len(owners) != 1:
        raise ConfigError(
            f"{type(config).__qualname__} has {len(owners)} options that choose a {what}, expected one: "
            "define evaluate(config, policy) in the script, or write out what is to be done in a script of your own"
        )
    return owners[0]


def evaluate(trained: Trained, *, samples_per_prompt: int = 1, num_prompts: int | None = None) -> dict[str, float]:
    """Metrics of the policy on held-out prompts, or in ``num_prompts`` episodes of one that acts.

    A script that defines ``evaluate(config, policy)`` is asked; otherwise the prompts of the configuration's
    ``PromptsConfig`` with ``split='held_out'`` are answered and judged by ``math_answer``.

    Raises:
        ConfigError: the configuration has no such prompts.
    """
    own = getattr(trained.script, "evaluate", None)
    if own is not None:
        return dict(own(trained.config, trained.policy))
    config = trained.config
    if isinstance(trained.policy, Actor):
        with closing(simulated(config, num_rows=8)) as env:
            return _acting(trained).evaluate(env, num_prompts or _NUM_EPISODES)
    prompts = Prompts(_held_out(config))
    samplings = [value for value in _nested(config) if isinstance(value, SamplingConfig)]
    rollout = Rollout(
        trained.policy,
        engine=_only(config, Engine, what="generation engine"),
        sampling=samplings[0] if samplings else SamplingConfig(),
    )
    rollout.load_weights(trained)
    taken = prompts.take(len(prompts) if num_prompts is None else min(num_prompts, len(prompts)))
    reward = MathReward()
    try:
        return reward.summary(rollout.generate(taken, samples_per_prompt=samples_per_prompt))
    finally:
        reward.close()


def film(trained: Trained, episodes: int = 1) -> Film:
    """What a policy that acts does in the first ``episodes`` episodes of its evaluation.

    Raises:
        ConfigError: the policy does not act.
        SimulatorError: the simulator cannot draw here.
    """
    if not isinstance(trained.policy, Actor):
        raise ConfigError(f"the policy '{trained.policy.name}' answers prompts: m2flow eval measures it")
    require_encoder()
    with closing(simulated(trained.config, num_rows=1)) as env:
        return _acting(trained).film(env, episodes)


def _acting(trained: Trained) -> Rollout:
    rollout = Rollout(trained.policy)
    rollout.load_weights(trained)
    return rollout


def _held_out(config: Config) -> PromptsConfig:
    found = [value for value in _nested(config) if isinstance(value, PromptsConfig)]
    held_out = [value for value in found if value.split == "held_out"]
    if len(held_out) != 1:
        raise ConfigError(
            f"{type(config).__qualname__} has {len(held_out)} data options with split=held_out, expected one: add "
            "held_out: mf.PromptsConfig = mf.PromptsConfig(split='held_out'), or define evaluate(config, policy)"
        )
    return held_out[0]
