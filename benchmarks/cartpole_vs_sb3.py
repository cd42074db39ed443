# SPDX-License-Identifier: Apache-2.0
"""Steps until CartPole is solved, beside Stable-Baselines3: equal settings, seeds 0 to 9, the two in turn.

python benchmarks/cartpole_vs_sb3.py [--seeds 10]

Solved is a mean return of 475 in 20 episodes of the most likely actions, which are not counted, looked at every 2,048
steps. The settings are those of the RL Zoo: 8 environments x 32 ticks, 20 epochs of one mini-batch, rate 1e-3 and clip
0.2 (here both constant), gamma 0.98, lambda 0.8, two tanh layers of 64. Needs ``pip install stable-baselines3``.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import math
import statistics
from typing import Any

import gymnasium
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import m2flow as mf

NUM_ENVS, NUM_TICKS, EPOCHS, RATE, GAMMA, LAM, MAX_NORM = 8, 32, 20, 1e-3, 0.98, 0.8, 0.5
EVERY, ENOUGH, EPISODES, GIVE_UP = 2048, 475.0, 20, 200_000


def ours(seed: int) -> int:
    """Steps that m2flow needs."""
    torch.manual_seed(seed)
    env = mf.Env("gymnasium", num_rows=NUM_ENVS)
    policy = mf.Mlp(mf.Mlp.Config(hidden=(64, 64)), env.interface, seed=seed)
    rates = {"learning_rate": RATE, "critic_learning_rate": RATE, "max_grad_norm": MAX_NORM}
    learner = mf.Learner(
        policy,
        algorithm={"name": "ppo", "gamma": GAMMA, "lam": LAM, "value_clip": None},
        trainer={"name": "local", "epochs": EPOCHS, "minibatches": 1, **rates},
    )
    rollout = mf.Rollout(policy, seed=seed)
    for steps in range(0, GIVE_UP, NUM_ENVS * NUM_TICKS):
        if steps % EVERY == 0 and rollout.evaluate(env, EPISODES)["episode/return_mean"] >= ENOUGH:
            return steps
        learner.update(rollout.interact(env, steps=NUM_TICKS))
        rollout.load_weights(learner)
    return GIVE_UP


def theirs(seed: int) -> int:
    """Steps that Stable-Baselines3 needs."""
    library: Any = importlib.import_module("stable_baselines3")
    vector: Any = importlib.import_module("stable_baselines3.common.env_util")
    measure: Any = importlib.import_module("stable_baselines3.common.evaluation").evaluate_policy
    model = library.PPO(
        "MlpPolicy",
        vector.make_vec_env("CartPole-v1", NUM_ENVS, seed=seed),
        n_steps=NUM_TICKS,
        batch_size=NUM_ENVS * NUM_TICKS,
        n_epochs=EPOCHS,
        learning_rate=RATE,
        gamma=GAMMA,
        gae_lambda=LAM,
        max_grad_norm=MAX_NORM,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": nn.Tanh},
        seed=seed,
        device="cpu",
    )
    judge = vector.make_vec_env("CartPole-v1", 1, seed=10_000)
    for steps in range(0, GIVE_UP, EVERY):
        judge.seed(10_000)
        if measure(model, judge, EPISODES)[0] >= ENOUGH:
            return steps
        model.learn(EVERY, reset_num_timesteps=False)
    return GIVE_UP


def interval(numbers: list[int]) -> str:
    """Mean and its 95 % confidence interval (Student's t of 9 degrees of freedom, the widest that may be asked for)."""
    half = 2.262 * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return f"{statistics.fmean(numbers):,.0f} ± {half:,.0f}"


def main() -> None:
    """All seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    torch.set_num_threads(1)
    found = [(ours(seed), theirs(seed)) for seed in range(given.seeds)]
    table = Table("side", "steps to 475, mean", "each seed")
    for side, steps in zip(("m2flow", "Stable-Baselines3"), zip(*found, strict=True), strict=True):
        table.add_row(side, interval(list(steps)), " ".join(f"{one // 1000}k" for one in steps))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
