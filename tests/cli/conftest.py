# SPDX-License-Identifier: Apache-2.0
"""A small script, one run of it with adapters, and the program as it is called."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from m2flow.cli import script
from m2flow.cli.main import app

SCRIPT = '''
"""A small run."""
import m2flow as mf


class Config(mf.TextRunConfig):
    """Its options."""

    iterations: int = 2
    """How many."""
    prompts_per_iteration: int = 4
    """Problems in one iteration."""
    samples_per_prompt: int = 4
    """Answers to each problem."""
    sampling: mf.SamplingConfig = mf.SamplingConfig(max_new_tokens=5)
    """How answers are drawn."""
    model: mf.Llm.Config = mf.Llm.Config(model="tiny")
    """The model that is trained."""
    data: mf.PromptsConfig = mf.PromptsConfig()
    """Problems to train on."""
    held_out: mf.PromptsConfig = mf.PromptsConfig(split="held_out")
    """Problems to evaluate on."""
    engine: mf.EngineConfig = "hf"
    """What generates."""
    algorithm: mf.AlgorithmConfig = "grpo"
    """What the update computes."""
    trainer: mf.TrainerConfig = {"name": "local", "learning_rate": 1e-2}
    """How the weights are updated."""


def main(config: Config) -> None:
    policy = mf.Llm(config.model)
    with mf.Run(config) as run:
        rollout = run.role(mf.Rollout(policy, engine=config.engine, sampling=config.sampling))
        reward = run.role(mf.MathReward())
        learner = run.role(
            mf.Learner(policy, algorithm=config.algorithm, trainer=config.trainer, sampling=config.sampling)
        )
        for prompts in run.iterations(mf.MathPrompts(config.data), config.prompts_per_iteration):
            scored = reward.score(rollout.generate(prompts, samples_per_prompt=config.samples_per_prompt))
            run.log(learner.update(scored))
            rollout.load_weights(learner)


if __name__ == "__main__":
    mf.cli(main)
'''


@pytest.fixture(scope="session")
def script_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script."""
    path = tmp_path_factory.mktemp("script") / "small.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="session")
def run_folder(script_path: Path) -> Path:
    """A finished run of it, which trained adapters."""
    folder = script_path.parent / "run"
    options = f"--run-dir {folder} --model.lora --checkpoint.every 1 --observe.quiet"
    assert script.run(script.load_script(script_path).main, options.split()) == 0
    return folder


@pytest.fixture
def m2flow() -> Callable[..., Result]:
    """Calls the program in this process."""

    def call(*words: object) -> Result:
        return CliRunner().invoke(app, [str(word) for word in words])

    return call
