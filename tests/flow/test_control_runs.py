# SPDX-License-Identifier: Apache-2.0
"""A run that controls: the same roles, learner and checkpoints as for texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import m2flow as mf
from m2flow.errors import ConfigError, FlowError, LearnerError
from m2flow.flow.tallies import wilson
from m2flow.observe.headlines import AMOUNTS, HELD_OUT, REWARD, SPEEDS, SUCCESS
from m2flow.observe.recorder import ObserveConfig

PPO = {"name": "ppo", "gamma": 0.95, "value_clip": None}
TRAINER = {"name": "local", "learning_rate": 3e-4, "critic_learning_rate": 1e-3, "epochs": 4, "minibatches": 4}


def train(
    run_dir: Path,
    *,
    iterations: int,
    resume: Any = "never",
    algorithm: Any = PPO,
    interact: Any = None,
    env: Any = None,
    evaluate_at: int | None = None,
    **policy: Any,
) -> tuple[mf.Mlp, dict[str, float]]:
    """The policy after so many iterations, and the last metrics of the learner."""
    config = mf.RunConfig(iterations=iterations, run_dir=run_dir, resume=resume, observe=ObserveConfig(quiet=True))
    stats: dict[str, float] = {}
    with mf.Run(config) as run:
        rows = run.role(mf.Env("toy", **{"num_rows": 16, **(env or {})}))
        actor = mf.Mlp(mf.Mlp.Config(hidden=(64, 64), **policy), mf.Env("toy").interface)
        rollout = run.role(mf.Rollout(actor))
        learner = run.role(mf.Learner(actor, algorithm=algorithm, trainer=TRAINER))
        for _ in run.iterations():
            trajectories = rollout.interact(rows, **(interact or {"steps": 30}))
            if run.iteration == evaluate_at:
                rollout.evaluate(rows, 20)
            made: Any = learner.update(trajectories)
            rollout.load_weights(learner)
            run.log(made)
            stats = made.get()
        found: Any = rollout.evaluate(rows, 50)
        return actor, {**stats, **found.get()}


@pytest.mark.parametrize("normalize", [False, True])
def test_ppo_learns_to_reach_the_goal(tmp_path: Path, normalize: bool) -> None:
    _, stats = train(tmp_path / "run", iterations=25, normalize_observations=normalize)
    assert stats["episode/success_at_end"] >= 0.9 and stats["episode/success_low"] > 0.75
    assert stats["episode/num"] == 50 and stats["learner/version"] == 25
    # Law 4: the learner finds the log-probs that the rollout drew with.
    assert stats["rollout/logprob_diff_max"] < 1e-4


def test_grpo_learns_from_whole_episodes_of_groups(tmp_path: Path) -> None:
    _, stats = train(
        tmp_path / "run",
        iterations=25,
        algorithm="grpo",
        interact={"episodes": 1},
        env={"num_rows": 32, "group_size": 8},
    )
    assert stats["episode/success_at_end"] >= 0.9


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Episodes of 50 ticks are cut by iterations of 30: the checkpoint falls into the middle of some."""
    whole, _ = train(tmp_path / "whole", iterations=4, normalize_observations=True)
    train(tmp_path / "cut", iterations=3, normalize_observations=True)
    resumed, _ = train(tmp_path / "cut", iterations=4, resume="auto", normalize_observations=True)
    assert all(torch.equal(tensor, resumed.state()[name]) for name, tensor in whole.state().items())


def test_what_displays_lead_with_is_logged(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=2, interact={"steps": 60})
    (*_, line) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = json.loads(line)
    for headline in (REWARD, SUCCESS, SPEEDS[1], AMOUNTS[1]):
        assert headline.value(logged) is not None, headline
    assert logged["learner/ticks"] == 16 * 60
    assert HELD_OUT.value({"held_out/success_at_end": 0.9, "held_out/return_mean": 3.0}) == 0.9


def test_a_film_is_kept_and_shown_and_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("av")
    config = mf.RunConfig(iterations=2, run_dir=tmp_path / "run", observe=ObserveConfig(quiet=True))
    with mf.Run(config) as run:
        env = mf.Env("toy", num_rows=4, num_parts=2)
        actor = mf.Mlp(mf.Mlp.Config(hidden=(8,)), env.interface)
        rows, rollout = run.role(env), run.role(mf.Rollout(actor))
        for _ in run.iterations():
            rollout.interact(rows, steps=3)
            before = env.state()["stepper"]
            made: Any = rollout.film(rows, 2)
            run.show(made, "held_out")
            with pytest.raises(FlowError, match="film 'held_out' was shown twice"):
                run.show(made, "held_out")
            with pytest.raises(FlowError, match=r"a film's name is '\.\./up'"):
                run.show(made, "../up")
            film = made.get()
            again: Any = rollout.film(rows, 2)
            assert film == again.get() and 2 <= film.num_pictures <= 2 * 50
            after = env.state()["stepper"]
            assert all(np.array_equal(a, b) for a, b in zip(before["actions"], after["actions"], strict=True))
    written = sorted(path.name for path in (tmp_path / "run" / "videos").iterdir())
    assert written == ["held_out-000000.mp4", "held_out-000001.mp4"]
    assert (tmp_path / "run" / "videos" / written[0]).read_bytes() == film.mp4
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<video") == 2 and "held_out, iteration 1" in page


def test_an_evaluation_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    without, _ = train(tmp_path / "without", iterations=3)
    with_one, _ = train(tmp_path / "with", iterations=3, evaluate_at=1)
    assert all(torch.equal(tensor, with_one.state()[name]) for name, tensor in without.state().items())


def test_parts_change_nothing_but_the_last_digits(tmp_path: Path) -> None:
    one, _ = train(tmp_path / "one", iterations=1)
    four, _ = train(tmp_path / "four", iterations=1, env={"num_parts": 4})
    for name, tensor in one.state().items():
        torch.testing.assert_close(tensor, four.state()[name], atol=1e-5, rtol=1e-4)


def test_what_does_not_fit_together_is_said(tmp_path: Path) -> None:
    env = mf.Env("toy", num_rows=4)
    policy = mf.Mlp(mf.Mlp.Config(hidden=(8,)), env.interface)
    rollout = mf.Rollout(policy)
    with pytest.raises(FlowError, match="steps=None, episodes=None: give one of them"):
        rollout.interact(env)
    with pytest.raises(FlowError, match="steps=0"):
        rollout.interact(env, steps=0)
    with pytest.raises(FlowError, match="episodes=0, expected at least 1"):
        rollout.evaluate(env, 0)
    with pytest.raises(LearnerError, match="no critic that says what an unfinished episode is worth"):
        mf.Learner(policy, algorithm="grpo").update(rollout.interact(env, steps=3))
    with pytest.raises(LearnerError, match="losses of whole sequences"):
        mf.Learner(policy, algorithm="gspo")
    with pytest.raises(LearnerError, match="how tokens are drawn, the policy 'mlp' draws none"):
        mf.Learner(policy, algorithm="ppo", sampling=mf.SamplingConfig())
    with pytest.raises(LearnerError, match=r"got 0 items, expected what one rollout\.interact returned"):
        mf.Learner(policy, algorithm="ppo").update([])
    with pytest.raises(LearnerError, match="got a Trajectories, expected scored groups"):
        mf.Learner(mf.Llm(mf.Llm.Config(model="tiny"))).update([rollout.interact(env, steps=3)])
    with pytest.raises(ConfigError, match="toys"):
        mf.Env("toys")


def test_a_reward_that_is_no_number_is_named() -> None:
    env = mf.Env("toy", num_rows=4)
    policy = mf.Mlp(mf.Mlp.Config(hidden=(8,)), env.interface)
    trajectories = mf.Rollout(policy).interact(env, steps=3)
    trajectories.rewards[1, 2] = np.nan
    learner = mf.Learner(policy, algorithm="ppo")
    with pytest.raises(LearnerError, match="tick 1 of environment 2 has reward nan"):
        learner.update([trajectories])
    trajectories.mask[:] = False
    assert learner.update([trajectories])["learner/skipped"] == 1


def test_wilsons_interval_is_the_published_one() -> None:
    """9 of 10: 0.596 to 0.982 (Newcombe 1998, method 3, gives the like for its table's other counts)."""
    low, high = wilson(9, 10)
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == pytest.approx(1)
