# SPDX-License-Identifier: Apache-2.0
"""Bad rewards, batches, data and models: the error says what was given, what was expected and what to do."""

import asyncio
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import m2flow as mf
from m2flow.errors import (
    ConfigError,
    DataError,
    EngineError,
    LearnerError,
    ModelError,
    RewardError,
)
from m2flow.policies.language.model_files import TINY
from tests.end_to_end.conftest import steps, train


def _raises(completion: str) -> float:
    raise ValueError("boom")


async def _raises_late(completion: str) -> float:
    await asyncio.sleep(0)
    raise ValueError("boom")


def _hangs(completion: str) -> float:
    while True:
        time.sleep(0.01)


async def _hangs_too(completion: str) -> float:
    await asyncio.sleep(60)
    return 0.0


REWARDS: list[tuple[Callable[..., Any], str]] = [
    (_raises, "reward '_raises' raised ValueError on sample 0 of prompt 'addition/.*': boom"),
    (_raises_late, "reward '_raises_late' raised ValueError on sample 0 of prompt"),
    (_hangs, "reward '_hangs' raised TimeoutError on sample 0 of prompt '.*': it took too long"),
    (_hangs_too, "reward '_hangs_too' raised TimeoutError on sample 0 of prompt '.*': it took too long"),
    (lambda completion: "1", r"returned '1' \(str\) for sample 0 of prompt '.*', expected a finite number"),
    (lambda completion: math.nan, r"returned nan \(float\) .* expected a finite number"),
    (lambda completion: -math.inf, r"returned -inf \(float\) .* expected a finite number"),
    (lambda completion: [1.0, 2.0], r"returned \[1.0, 2.0\] \(list\) .* expected a finite number"),
    (lambda solution: 1.0, "asks for 'solution', which prompt '.*' does not have: its columns are answer"),
]


@pytest.mark.parametrize(("function", "message"), REWARDS)
def test_a_bad_reward_is_named_with_its_sample(tmp_path: Path, function: Callable[..., Any], message: str):
    with pytest.raises(RewardError, match=message):
        train(tmp_path / "run", reward=mf.Reward(function, timeout_s=0.2))


def test_an_async_reward_is_as_good_as_any_and_a_slow_one_costs_its_sample_alone(tmp_path: Path):
    async def reward(completion: str, sample: mf.Sample) -> float:
        await asyncio.sleep(10 * (sample.index == 0))
        return float(len(completion))

    train(tmp_path / "run", reward=mf.Reward(reward, timeout_s=0.2, on_error="none"), iterations=1)
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["reward/reward_errors"] == 4 and line["learner/samples_without_reward"] == 4


# Batches and prompts


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"trainer": {"name": "local", "minibatches": 3}}, LearnerError, "4 groups cannot be cut into minibatches=3"),
        ({"max_new_tokens": 300}, EngineError, "with max_new_tokens 300 that is more than the model's context of 256"),
        ({"trainer": "locall"}, ConfigError, r"unknown trainer 'locall': did you mean 'local'\?"),
        ({"trainer": {"name": "local", "epoch": 3}}, ConfigError, r"trainer.epoch: no such option; did you mean"),
        ({"iterations": "two"}, ConfigError, "iterations: got 'two', expected a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        train(tmp_path / "run", **given)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", DataError, "rows.jsonl is empty: expected at least one prompt"),
        (
            json.dumps({"prompt": "1+" * 300, "answer": "1"}),
            EngineError,
            "prompt 'rows.jsonl:1' has 600 tokens; with max_new_tokens 4 .* context of 256: shorten the prompt",
        ),
        ('{"prompt": "1+1="}', DataError, "no column 'answer'.* set answer_column to none"),
    ],
)
def test_bad_data_is_refused(tmp_path: Path, text: str, error: type[Exception], message: str):
    (tmp_path / "rows.jsonl").write_text(text)
    source = {"name": "jsonl", "path": tmp_path / "rows.jsonl"}
    with pytest.raises(error, match=message):
        train(tmp_path / "run", data=mf.PromptsConfig(source=source, split="all"))


def _weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        tensors = load_file(model / "model.safetensors")
        change(tensors)
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})

    return apply


def _settings(**values: Any) -> Callable[[Path], Any]:
    return lambda model: (model / "config.json").write_text(
        json.dumps({**json.loads((TINY / "config.json").read_text()), **values})
    )


def _cut(name: str, keep: int) -> Callable[[Path], Any]:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:keep])


MODELS: list[tuple[Callable[[Path], Any], str]] = [
    (_cut("model.safetensors", 100_000), r"a \*.safetensors file in .* is damaged: .*; copy or download it again"),
    (_cut("model.safetensors", 0), r"a \*.safetensors file in .* is damaged"),
    (lambda model: (model / "model.safetensors").unlink(), r"has no \*.safetensors, so no weights; it holds"),
    (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer .*: copy the tokenizer's files"),
    (_cut("tokenizer.json", 100), "the tokenizer in .* cannot be loaded: .*; copy its files there again"),
    (_cut("config.json", 30), "config.json is no configuration that transformers knows: .*get an undamaged copy"),
    (_settings(hidden_size="a"), "config.json is no configuration .*hidden_size"),
    (_settings(num_attention_heads=7), "config.json is no configuration .*not a multiple of the number of attention"),
    (_settings(model_type="nope"), "config.json is no configuration that transformers knows: .*`nope`.*get an"),
    (_settings(num_hidden_layers=9), r"do not fit its config.json: 54 missing \(model.layers.3.input_layernorm"),
    (_weights(lambda w: w.pop("model.norm.weight")), r"do not fit its config.json: 1 missing \(model.norm.weight\)"),
    (_weights(lambda w: w.update(extra=w["model.norm.weight"] * 1)), r"1 that the model has no place for \(extra\)"),
    (_weights(lambda w: w["model.norm.weight"].fill_(math.nan)), "are infinite or not a number: model.norm.weight"),
]


@pytest.mark.parametrize(("damage", "message"), MODELS)
def test_a_damaged_model_is_refused_and_says_where(tmp_path: Path, damage: Callable[[Path], Any], message: str):
    model = Path(shutil.copytree(TINY, tmp_path / "model"))
    damage(model)
    policy = mf.Llm(mf.Llm.Config(model=str(model)))
    with pytest.raises(ModelError, match=f"(?s){message}"):
        assert policy.tokenizer and policy.module


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path: Path):
    with pytest.raises(ModelError, match="there is no model folder"):
        train(tmp_path / "run", model="./nope")
    train(tmp_path / "run", iterations=1)
    assert steps(tmp_path / "run") == [1]
