# SPDX-License-Identifier: Apache-2.0
"""Real Ray, real processes: the same flow gives the same weights wherever its roles run, and what dies says so."""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import m2flow as mf
from m2flow.checkpoint.store import Store
from m2flow.errors import FlowError
from m2flow.flow.run import CheckpointConfig, RuntimeConfig
from m2flow.observe.recorder import ObserveConfig
from m2flow.runtime.placement import Plan
from m2flow.runtime.saved import whole

INLINE = RuntimeConfig()
APART = RuntimeConfig(kind="ray", slots=2, pin=("rollout=1", "learner=0", "mathreward=0,1"))
TOGETHER = RuntimeConfig(kind="ray", slots=2)


class Watch:
    """A role of a user's own: counts groups, and can be made to die."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.dies_at = dies_at
        self.seen = 0

    def look(self, groups: Iterable[mf.Group]) -> Iterator[mf.Group]:
        for group in groups:
            self.seen += 1
            if self.seen == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield group

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def train(
    folder: Path, runtime: RuntimeConfig, *, dies_at: int | None = None, trainer: str = "local", iterations: int = 3
) -> None:
    config = mf.RunConfig(
        iterations=iterations,
        run_dir=folder,
        resume="auto",
        runtime=runtime,
        observe=ObserveConfig(quiet=True),
        checkpoint=CheckpointConfig(every=1),
    )
    policy, sampling = mf.Llm(mf.Llm.Config(model="tiny")), mf.SamplingConfig(max_new_tokens=5)
    with mf.Run(config) as run:
        rollout = run.role(mf.Rollout(policy, sampling=sampling))
        reward = run.role(mf.MathReward())
        watch = run.role(Watch(dies_at))
        learner = run.role(mf.Learner(policy, trainer={"name": trainer, "learning_rate": 1e-3}, sampling=sampling))
        for prompts in run.iterations(mf.MathPrompts(), 8):
            scored = watch.look(reward.score(rollout.generate(prompts, samples_per_prompt=4)))
            stats = learner.update(scored)
            rollout.load_weights(learner)
            run.log(stats)


def end(folder: Path) -> dict[str, Any]:
    return Store(folder / "checkpoints", keep=2).load(None)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return whole(end(folder)["roles"]["learner"])["policy"]


def differences(one: Path, other: Path) -> torch.Tensor:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return torch.cat([(first[name] - second[name]).abs().flatten() for name in first])


def require_equal_but_for_rounding(one: Path, other: Path):
    """Adam divides a gradient by its own size: an entry whose gradient is rounding moves by a good part of a step
    (here 1e-3) in a direction that rounding chose. There are a few of those, so all entries together are judged."""
    found = differences(one, other)
    assert found.square().mean().sqrt() < 1e-6
    assert found.max() < 2e-4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as a slot of one core has, so that sums are added up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_run_on_two_slots_that_loses_one_resumes_and_ends_as_a_run_in_one_process(tmp_path: Path):
    train(tmp_path / "inline", INLINE)
    with pytest.raises(FlowError, match=r"slot \d died .* with .*watch\.look"):
        train(tmp_path / "ray", APART, dies_at=13)
    assert end(tmp_path / "ray")["iteration"] == 1
    train(tmp_path / "ray", APART)
    require_equal_but_for_rounding(tmp_path / "inline", tmp_path / "ray")
    assert end(tmp_path / "ray")["roles"]["watch"] == {"seen": 24}


def test_a_learner_on_two_slots_makes_the_weights_of_one_and_its_checkpoint_goes_on_in_one_process(tmp_path: Path):
    train(tmp_path / "inline", INLINE, iterations=3)
    train(tmp_path / "ray", TOGETHER, trainer="fsdp", iterations=2)
    assert len(end(tmp_path / "ray")["roles"]["learner"]["slots"]) == 2
    assert Plan.load(tmp_path / "ray" / "plan.json").stages["learner"].slots == (0, 1)
    train(tmp_path / "ray", INLINE, iterations=3)
    require_equal_but_for_rounding(tmp_path / "inline", tmp_path / "ray")
