# SPDX-License-Identifier: Apache-2.0
"""Runs: real ones, of the model that ships in the package."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import m2flow as mf
from m2flow.checkpoint.store import Store
from m2flow.errors import ConfigError, FlowError
from m2flow.flow.run import CheckpointConfig
from m2flow.observe.headlines import AMOUNTS, HELD_OUT, KL, REWARD, SECONDS, SPEEDS
from m2flow.observe.recorder import ObserveConfig


class Config(mf.RunConfig):
    """The options of a small run."""

    algorithm: Any = "grpo"
    """What the update computes."""


class Stopped(Exception):
    """Ends a run in the middle of an iteration."""


def train(folder: Path, *, iterations: int = 4, stop_in: int | None = None, **options: Any) -> None:
    observe, checkpoint = ObserveConfig(quiet=True), CheckpointConfig(every=1, keep=2)
    config = Config(iterations=iterations, run_dir=folder, observe=observe, checkpoint=checkpoint, **options)
    policy, sampling = mf.Llm(mf.Llm.Config(model="tiny")), mf.SamplingConfig(max_new_tokens=5)
    with mf.Run(config) as run:
        rollout = run.role(mf.Rollout(policy, sampling=sampling))
        reward = run.role(mf.MathReward())
        learner = run.role(mf.Learner(policy, algorithm=config.algorithm, sampling=sampling))
        # Six prompts, four at a time: every second iteration crosses an epoch's end, every third ends at one.
        for prompts in run.iterations(mf.MathPrompts(mf.PromptsConfig(max_prompts=6)), 4):
            scored = reward.score(rollout.generate(prompts, samples_per_prompt=4))
            stats = learner.update(scored)
            if run.iteration == stop_in:
                raise Stopped
            rollout.load_weights(learner)
            run.log(stats)


def end(folder: Path) -> dict[str, Any]:
    return Store(folder / "checkpoints", keep=2).load(None)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("time/", "throughput/", "unix_time", "elapsed")
    return [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(folder)
    return folder


@pytest.mark.parametrize("stop_in", [0, 1, 2, 3])
def test_a_run_stopped_in_any_iteration_resumes_bit_for_bit(undisturbed: Path, tmp_path: Path, stop_in: int):
    with pytest.raises(Stopped):
        train(tmp_path / "run", stop_in=stop_in)
    train(tmp_path / "run", resume="auto")
    assert same(end(tmp_path / "run"), end(undisturbed))
    assert metrics(tmp_path / "run") == metrics(undisturbed)


def test_every_headline_of_a_display_is_a_metric_that_a_run_logs(tmp_path: Path):
    config = Config(iterations=1, run_dir=tmp_path / "run", observe=ObserveConfig(quiet=True))
    policy, sampling = mf.Llm(mf.Llm.Config(model="tiny")), mf.SamplingConfig(max_new_tokens=5)
    with mf.Run(config) as run:
        rollout, reward = run.role(mf.Rollout(policy, sampling=sampling)), run.role(mf.MathReward())
        learner = run.role(mf.Learner(policy, algorithm={"name": "grpo", "kl_coef": 0.1}, sampling=sampling))
        for prompts in run.iterations(mf.MathPrompts(mf.PromptsConfig(max_prompts=2)), 2):
            scored = reward.score(rollout.generate(prompts, samples_per_prompt=4))
            run.log(reward.summary(scored), under="held_out")
            run.log(learner.update(scored))
    (line,) = (json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    first = [headline.names[0] for headline in (REWARD, HELD_OUT, KL, SPEEDS[0], AMOUNTS[0], SECONDS)]
    assert set(first) <= set(line), sorted(line)


def test_more_iterations_go_on_from_a_finished_run(undisturbed: Path, tmp_path: Path):
    train(tmp_path / "run", iterations=2)
    train(tmp_path / "run", resume="auto")
    assert same(end(tmp_path / "run"), end(undisturbed))


def test_another_seed_ends_elsewhere(undisturbed: Path, tmp_path: Path):
    train(tmp_path / "run", seed=1)
    assert not same(end(tmp_path / "run"), end(undisturbed))


@pytest.mark.parametrize("algorithm", ["ppo", "dapo", {"name": "grpo", "kl_coef": 0.1}])
def test_critics_references_and_resampling_resume_too(tmp_path: Path, algorithm: Any):
    train(tmp_path / "whole", iterations=3, algorithm=algorithm)
    with pytest.raises(Stopped):
        train(tmp_path / "run", iterations=3, stop_in=2, algorithm=algorithm)
    train(tmp_path / "run", iterations=3, resume="auto", algorithm=algorithm)
    assert same(end(tmp_path / "run"), end(tmp_path / "whole"))


def test_a_folder_that_holds_a_run_is_never_overwritten(undisturbed: Path):
    before = end(undisturbed)
    with pytest.raises(ConfigError, match=r"already holds a run: resume it with --resume auto"):
        train(undisturbed)
    assert same(end(undisturbed), before)


def test_resuming_with_another_setting_names_it(undisturbed: Path):
    with pytest.raises(ConfigError, match=r"seed: was 0, now 7"):
        train(undisturbed, resume="auto", seed=7)


def test_two_processes_cannot_hold_one_folder(tmp_path: Path):
    config = Config(iterations=1, run_dir=tmp_path, observe=ObserveConfig(quiet=True))
    with mf.Run(config), pytest.raises(FlowError, match="another process is running"), mf.Run(config):
        pass


def test_a_name_is_given_once_and_a_metric_logged_once(tmp_path: Path):
    with mf.Run(Config(iterations=1, run_dir=tmp_path, observe=ObserveConfig(quiet=True))) as run:
        run.role(mf.MathReward())
        with pytest.raises(FlowError, match="there is a role 'mathreward' already"):
            run.role(mf.MathReward())
        for _ in run.iterations():
            run.log({"mine/a": 1.0})
            with pytest.raises(FlowError, match="'mine/a' was logged twice"):
                run.log({"mine/a": 2.0})
            with pytest.raises(FlowError, match="'mine/b' is 'x', expected a number"):
                run.log({"mine/b": "x"})  # pyright: ignore[reportArgumentType]


def test_a_run_that_is_not_open_says_so(tmp_path: Path):
    run = mf.Run(Config(iterations=1, run_dir=tmp_path))
    with pytest.raises(FlowError, match="write `with Run"):
        run.role(mf.MathReward())


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3, 4])])
def test_what_is_due_is_so_in_the_first_and_last_iteration_too(tmp_path: Path, every: int, due: list[int]):
    with mf.Run(Config(iterations=5, run_dir=tmp_path, observe=ObserveConfig(quiet=True))) as run:
        assert [run.iteration for _ in run.iterations() if run.due(every)] == due


def test_a_user_s_own_class_is_a_role_and_its_state_is_kept(tmp_path: Path):
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: int) -> int:
            self.count += number
            return self.count

        def state(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    def count(iterations: int) -> int:
        config = Config(iterations=iterations, run_dir=tmp_path, resume="auto", observe=ObserveConfig(quiet=True))
        target = Counter()
        with mf.Run(config) as run:
            counter = run.role(target)
            for _ in run.iterations():
                counter.add(10)
        return target.count

    assert count(3) == 30 and count(5) == 50
