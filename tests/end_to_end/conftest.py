# SPDX-License-Identifier: Apache-2.0
"""A small run, which every test here spoils in its own way."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import m2flow as mf
from m2flow.checkpoint.store import Store
from m2flow.flow.run import CheckpointConfig
from m2flow.observe.recorder import ObserveConfig


def train(folder: Path, **given: Any) -> None:
    """A small run; ``given`` are options of its parts, ``each`` is called in every iteration."""
    config = mf.RunConfig(
        iterations=given.get("iterations", 2),
        run_dir=folder,
        observe=ObserveConfig(quiet=True),
        checkpoint=CheckpointConfig(every=1),
        resume=given.get("resume", "never"),
    )
    policy = mf.Llm(mf.Llm.Config(model=str(given.get("model", "tiny"))))
    sampling = mf.SamplingConfig(max_new_tokens=given.get("max_new_tokens", 4))
    with mf.Run(config) as run:
        rollout = run.role(mf.Rollout(policy, sampling=sampling))
        reward = run.role(given.get("reward") or mf.MathReward())
        learner = run.role(mf.Learner(policy, sampling=sampling, trainer=given.get("trainer", "local")))
        for prompts in run.iterations(mf.MathPrompts(given.get("data")), 4):
            given.get("each", lambda: None)()
            stats = learner.update(reward.score(rollout.generate(prompts, samples_per_prompt=2)))
            rollout.load_weights(learner)
            run.log(stats)


def steps(folder: Path) -> list[int]:
    return Store(folder / "checkpoints", keep=2).steps()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations, both of them saved."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder)
    return folder


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
