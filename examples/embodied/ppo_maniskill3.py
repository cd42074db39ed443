# SPDX-License-Identifier: Apache-2.0
"""A robot arm learns to push a cube by PPO: act, update, repeat. Needs: pip install 'm2flow[maniskill]'."""

from pydantic import Field

import m2flow as mf


class Config(mf.ControlRunConfig):
    """PPO on ManiSkill3's PushCube-v1 from states, on the CPU; every part can be changed."""

    iterations: int = Field(default=200, ge=1)
    """How many times to act and to update."""
    env: mf.EnvConfig = {"name": "maniskill", "id": "PushCube-v1"}
    """What is acted in."""
    num_rows: int = Field(default=8, ge=1)
    """Copies of it."""
    steps: int = Field(default=256, ge=1)
    """Ticks of each copy in one iteration."""
    evaluate_every: int = Field(default=10, ge=0)
    """Iterations between two evaluations; 0 never evaluates."""
    policy: mf.Mlp.Config = mf.Mlp.Config(normalize_observations=True, initial_log_std=-1.0)
    """The network that is trained."""
    algorithm: mf.AlgorithmConfig = {"name": "ppo", "gamma": 0.8, "lam": 0.9, "value_clip": None, "target_kl": 0.1}
    """What the update computes: ppo, reinforce_pp, ..."""
    trainer: mf.TrainerConfig = {
        "name": "local",
        "learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "max_grad_norm": 0.5,
        "epochs": 8,
        "minibatches": 8,
        "schedule": {"shape": "linear"},
    }
    """How the weights are updated."""


def main(config: Config) -> None:
    """The whole flow."""
    rows = mf.Env(config.env, num_rows=config.num_rows)
    policy = mf.Mlp(config.policy, rows.interface, seed=config.seed)
    with mf.Run(config) as run:
        env = run.role(rows)
        rollout = run.role(mf.Rollout(policy))
        learner = run.role(mf.Learner(policy, algorithm=config.algorithm, trainer=config.trainer))

        for _ in run.iterations():
            if run.due(config.evaluate_every):
                run.log(rollout.evaluate(env, episodes=100), under="held_out")
                run.show(rollout.film(env), "held_out")
            trajectories = rollout.interact(env, steps=config.steps)
            stats = learner.update(trajectories)
            rollout.load_weights(learner)
            run.log(stats)


if __name__ == "__main__":
    mf.cli(main)
