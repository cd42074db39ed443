# SPDX-License-Identifier: Apache-2.0
"""One side of ``ppo_vs_peers.py``: PPO by one library, or random actions, in a process of its own.

python benchmarks/control_side.py m2flow|sb3|rsl_rl|cleanrl|random halfcheetah|pushcube [--iterations 10]

Prints environment steps per second and wall time of the iterations after the first, as JSON. Every side has 8
environments and 256 ticks in an iteration, three tanh layers of 256 for policy and critic each, 8 epochs of 4
mini-batches, and no early stop. The peers have one thread, with which they are faster than with torch's default here;
m2flow chooses by itself. Of the peers each steps environments as its users do: Gymnasium's or its own worker
processes, one for each environment.
"""

import argparse
import importlib
import json
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

NUM_ENVS, NUM_TICKS, EPOCHS, MINIBATCHES, WIDTHS = 8, 256, 8, 4, (256, 256, 256)
GAMMA, LAM, RATE, CLIP, MAX_NORM, LOG_STD = {"halfcheetah": 0.99, "pushcube": 0.8}, 0.95, 3e-4, 0.2, 0.5, -0.5
ENVS = {
    "halfcheetah": {"name": "gymnasium", "id": "HalfCheetah-v5"},
    "pushcube": {"name": "maniskill", "id": "PushCube-v1"},
}


def make_env(task: str) -> gymnasium.Env:
    """For the peers."""
    torch.set_num_threads(1)
    if task == "halfcheetah":
        return gymnasium.make("HalfCheetah-v5")
    warnings.simplefilter("ignore")
    importlib.import_module("mani_skill.envs")
    wrappers: Any = importlib.import_module("mani_skill.utils.wrappers")
    options: dict[str, Any] = {"obs_mode": "state", "control_mode": "pd_joint_delta_pos", "sim_backend": "physx_cpu"}
    env = gymnasium.make("PushCube-v1", num_envs=1, reward_mode="normalized_dense", **options)
    return wrappers.CPUGymWrapper(env, ignore_terminations=True, record_metrics=False)


def async_envs(task: str) -> Any:
    """Gymnasium's workers; they reset in the tick in which an episode ends."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makes = [partial(make_env, task)] * NUM_ENVS
    return gymnasium.vector.AsyncVectorEnv(makes, context="forkserver", autoreset_mode=mode)


def m2flow_side(task: str, iterations: int) -> None:
    """A whole run; its checkpoint and its report at the end count, which the peers do not make."""
    import m2flow as mf
    from m2flow.observe.recorder import ObserveConfig

    folder = Path(tempfile.mkdtemp()) / "run"
    config = mf.RunConfig(iterations=iterations + 1, run_dir=folder, observe=ObserveConfig(quiet=True))
    rates = {"learning_rate": RATE, "critic_learning_rate": RATE, "max_grad_norm": MAX_NORM}
    rows = mf.Env(ENVS[task], num_rows=NUM_ENVS, num_workers=2)
    policy = mf.Mlp(mf.Mlp.Config(hidden=WIDTHS, initial_log_std=LOG_STD), rows.interface)
    with mf.Run(config) as run:
        env, rollout = run.role(rows), run.role(mf.Rollout(policy))
        algorithm = {"name": "ppo", "gamma": GAMMA[task], "lam": LAM, "value_clip": None}
        trainer = {"name": "local", "epochs": EPOCHS, "minibatches": MINIBATCHES, **rates}
        learner = run.role(mf.Learner(policy, algorithm=algorithm, trainer=trainer))
        meter: Meter | None = None
        for _ in run.iterations():
            meter = meter or (Meter() if run.iteration else None)
            trajectories = rollout.interact(env, steps=NUM_TICKS)
            run.log(learner.update(trajectories))
            rollout.load_weights(learner)
    assert meter is not None
    meter.report(iterations)
    rows.close()


def sb3_side(task: str, iterations: int) -> None:
    """Stable-Baselines3."""
    library: Any = importlib.import_module("stable_baselines3")
    vector: Any = importlib.import_module("stable_baselines3.common.vec_env")
    envs = vector.VecMonitor(vector.SubprocVecEnv([partial(make_env, task)] * NUM_ENVS, start_method="forkserver"))
    sizes = {"n_steps": NUM_TICKS, "batch_size": NUM_ENVS * NUM_TICKS // MINIBATCHES, "n_epochs": EPOCHS}
    network = {"net_arch": list(WIDTHS), "log_std_init": LOG_STD, "activation_fn": nn.Tanh}
    numbers = {"gamma": GAMMA[task], "gae_lambda": LAM, "learning_rate": RATE, "max_grad_norm": MAX_NORM}
    model = library.PPO("MlpPolicy", envs, policy_kwargs=network, device="cpu", **sizes, **numbers)
    model.learn(NUM_ENVS * NUM_TICKS)
    meter = Meter()
    model.learn(iterations * NUM_ENVS * NUM_TICKS, reset_num_timesteps=False)
    meter.report(iterations)
    envs.close()


def rsl_rl_side(task: str, iterations: int) -> None:
    """rsl_rl, whose environments are tensors: here over Gymnasium's workers."""
    base: Any = importlib.import_module("rsl_rl.env").VecEnv
    runners: Any = importlib.import_module("rsl_rl.runners")
    tensordict: Any = importlib.import_module("tensordict")

    class Adapter(base):
        def __init__(self) -> None:
            self.envs = async_envs(task)
            self.num_envs, self.device, self.cfg = NUM_ENVS, "cpu", {}
            self.num_actions = int(np.prod(self.envs.single_action_space.shape or ()))
            self.max_episode_length, self.episode_length_buf = 1000, torch.zeros(NUM_ENVS, dtype=torch.long)
            self.seen = self.envs.reset(seed=0)[0]

        def get_observations(self) -> Any:
            seen = torch.as_tensor(self.seen, dtype=torch.float32)
            return tensordict.TensorDict({"policy": seen}, batch_size=[NUM_ENVS])

        def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict]:
            space: Any = self.envs.action_space
            self.seen, rewards, ended, cut, _ = self.envs.step(np.clip(actions.cpu().numpy(), space.low, space.high))
            extras = {"time_outs": torch.as_tensor(cut).float()}
            dones = torch.as_tensor(ended | cut).long()
            return self.get_observations(), torch.as_tensor(rewards, dtype=torch.float32), dones, extras

    network = {"class_name": "rsl_rl.models.MLPModel", "hidden_dims": list(WIDTHS), "activation": "tanh"}
    spread = {"class_name": "rsl_rl.modules.distribution.GaussianDistribution", "init_std": float(np.exp(LOG_STD))}
    algorithm = {
        "class_name": "rsl_rl.algorithms.PPO",
        "num_learning_epochs": EPOCHS,
        "num_mini_batches": MINIBATCHES,
        "gamma": GAMMA[task],
        "lam": LAM,
        "learning_rate": RATE,
        "max_grad_norm": MAX_NORM,
        "entropy_coef": 0.0,
        "schedule": "fixed",
        "use_clipped_value_loss": False,
    }
    env = Adapter()
    settings = {
        "num_steps_per_env": NUM_TICKS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**network, "distribution_cfg": spread},
        "critic": network,
        "algorithm": algorithm,
    }
    runner = runners.OnPolicyRunner(env, settings, log_dir=None, device="cpu")
    runner.learn(1)
    meter = Meter()
    runner.learn(iterations)
    meter.report(iterations)
    env.envs.close()


class Agent(nn.Module):
    """Policy and critic of the plain loop."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.mean, self.value = _layers(num_inputs, num_actions), _layers(num_inputs, 1)
        self.log_std = nn.Parameter(torch.full((num_actions,), LOG_STD))

    def normal(self, seen: torch.Tensor) -> Normal:
        """Of the actions."""
        mean = self.mean(seen)
        return Normal(mean, self.log_std.exp().expand_as(mean))


def _layers(num_inputs: int, num_outputs: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for width in WIDTHS:
        parts += [nn.Linear(num_inputs, width), nn.Tanh()]
        num_inputs = width
    return nn.Sequential(*parts, nn.Linear(num_inputs, num_outputs))


def cleanrl_side(task: str, iterations: int) -> None:
    """A loop in one file, as CleanRL's users write it, over Gymnasium's workers."""
    envs = async_envs(task)
    space: Any = envs.single_action_space
    agent = Agent(int(np.prod(envs.single_observation_space.shape or ())), int(np.prod(space.shape)))
    optimizer = torch.optim.Adam(agent.parameters(), lr=RATE, eps=1e-5)
    seen = torch.as_tensor(envs.reset(seed=0)[0], dtype=torch.float32)
    ended = torch.zeros(NUM_ENVS)
    meter = None
    for number in range(iterations + 1):
        meter = Meter() if number == 1 else meter
        batch, seen, ended = _collect(agent, envs, seen=seen, ended=ended, gamma=GAMMA[task])
        _update(agent, optimizer, batch=batch)
    assert meter is not None
    meter.report(iterations)
    envs.close()


def _collect(agent: Agent, envs: Any, *, seen: torch.Tensor, ended: torch.Tensor, gamma: float) -> Any:
    kept: list[list[torch.Tensor]] = []
    for _ in range(NUM_TICKS):
        with torch.no_grad():
            normal = agent.normal(seen)
            actions = normal.sample()
            value, logprob = agent.value(seen)[:, 0], normal.log_prob(actions).sum(-1)
        low, high = envs.single_action_space.low, envs.single_action_space.high
        following, rewards, over, cut, _ = envs.step(np.clip(actions.numpy(), low, high))
        kept.append([seen, actions, logprob, value, torch.as_tensor(rewards, dtype=torch.float32), ended])
        seen, ended = torch.as_tensor(following, dtype=torch.float32), torch.as_tensor(over | cut).float()
    observations, drawn, logprobs, values, rewards, ends = (torch.stack(column) for column in zip(*kept, strict=True))
    with torch.no_grad():
        following_value, following_end, last = agent.value(seen)[:, 0], ended, torch.zeros(NUM_ENVS)
    advantages = torch.zeros_like(rewards)
    for tick in reversed(range(NUM_TICKS)):
        alive = 1 - following_end
        delta = rewards[tick] + gamma * following_value * alive - values[tick]
        advantages[tick] = last = delta + gamma * LAM * alive * last
        following_value, following_end = values[tick], ends[tick]
    columns = (observations, drawn, logprobs, advantages, advantages + values)
    return [column.flatten(0, 1) for column in columns], seen, ended


def _update(agent: Agent, optimizer: torch.optim.Optimizer, *, batch: list[torch.Tensor]) -> None:
    size = len(batch[0])
    for _ in range(EPOCHS):
        for rows in torch.randperm(size).chunk(MINIBATCHES):
            seen, actions, old, advantages, returns = (column[rows] for column in batch)
            normal = agent.normal(seen)
            ratio = (normal.log_prob(actions).sum(-1) - old).exp()
            scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            loss = -torch.min(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
            loss = loss + 0.5 * 0.5 * (agent.value(seen)[:, 0] - returns).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_NORM)
            optimizer.step()


def random_side(task: str, iterations: int) -> None:
    """Gymnasium's AsyncVectorEnv with random actions: how fast the environments are, with nothing that learns."""
    envs = async_envs(task)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(NUM_TICKS)]
    meter = None
    for number in range(iterations + 1):
        meter = Meter() if number == 1 else meter
        for action in actions:
            envs.step(action)
    assert meter is not None
    meter.report(iterations)
    envs.close()


class Meter:
    """Wall time since it was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def report(self, iterations: int) -> None:
        """Print what was reached; call it before anything is closed."""
        wall = time.perf_counter() - self._began
        print(json.dumps({"steps_per_s": iterations * NUM_ENVS * NUM_TICKS / wall, "wall_s": wall}), flush=True)


SIDES = {
    "m2flow": m2flow_side,
    "sb3": sb3_side,
    "rsl_rl": rsl_rl_side,
    "cleanrl": cleanrl_side,
    "random": random_side,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("task", choices=ENVS)
    parser.add_argument("--iterations", type=int, default=10)
    given = parser.parse_args()
    if given.side != "m2flow":
        torch.set_num_threads(1)
    SIDES[given.side](given.task, given.iterations)
