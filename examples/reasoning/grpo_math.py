# SPDX-License-Identifier: Apache-2.0
"""A language model learns arithmetic by GRPO: sample answers, score them, update, repeat."""

from pydantic import Field

import m2flow as mf


class Config(mf.TextRunConfig):
    """GRPO on two-digit addition with the tiny model that ships in the package; every part can be changed."""

    iterations: int = Field(default=60, ge=1)
    """How many times to sample, score and update."""
    prompts_per_iteration: int = Field(default=32, ge=1)
    """Problems in one iteration."""
    samples_per_prompt: int = Field(default=8, ge=1)
    """Answers to each problem: one group."""
    evaluate_every: int = Field(default=10, ge=0)
    """Iterations between two evaluations on held-out problems; 0 never evaluates."""
    model: mf.Llm.Config = mf.Llm.Config(model="tiny")
    """The model that is trained."""
    data: mf.PromptsConfig = mf.PromptsConfig()
    """Problems to train on."""
    held_out: mf.PromptsConfig = mf.PromptsConfig(split="held_out")
    """Problems to evaluate on."""
    sampling: mf.SamplingConfig = mf.SamplingConfig(max_new_tokens=8)
    """How answers are drawn."""
    engine: mf.EngineConfig = "hf"
    """What generates."""
    algorithm: mf.AlgorithmConfig = "grpo"
    """What the update computes: grpo, dapo, ppo, rloo, ..."""
    trainer: mf.TrainerConfig = {"name": "local", "learning_rate": 3e-4}
    """How the weights are updated."""


def main(config: Config) -> None:
    """The whole flow."""
    policy = mf.Llm(config.model)
    with mf.Run(config) as run:
        rollout = run.role(mf.Rollout(policy, engine=config.engine, sampling=config.sampling))
        reward = run.role(mf.MathReward())
        learner = run.role(
            mf.Learner(policy, algorithm=config.algorithm, trainer=config.trainer, sampling=config.sampling)
        )
        held_out = mf.MathPrompts(config.held_out).take(256)

        for prompts in run.iterations(mf.MathPrompts(config.data), config.prompts_per_iteration):
            if run.due(config.evaluate_every):
                run.log(reward.summary(rollout.generate(held_out, samples_per_prompt=1)), under="held_out")
            groups = rollout.generate(prompts, samples_per_prompt=config.samples_per_prompt)
            scored = reward.score(groups)
            stats = learner.update(scored)
            rollout.load_weights(learner)
            run.log(stats)


if __name__ == "__main__":
    mf.cli(main)
