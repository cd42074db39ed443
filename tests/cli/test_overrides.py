# SPDX-License-Identifier: Apache-2.0
"""Options on the command line, as a Config."""

from pathlib import Path
from typing import Any

import pytest

from m2flow.cli.overrides import parse
from m2flow.cli.script import config_class, load_script
from m2flow.config import Config
from m2flow.errors import ConfigError


@pytest.fixture(scope="module")
def cls(script_path: Path) -> type[Config]:
    """The small script's Config."""
    return config_class(load_script(script_path).main)


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        ("--iterations 7", "iterations", 7),
        ("--iterations=7", "iterations", 7),
        ("--sampling.max_new_tokens 9", "sampling.max_new_tokens", 9),
        ("--sampling.stop a b", "sampling.stop", ("a", "b")),
        ('--sampling.stop ["a,b"]', "sampling.stop", ("a,b",)),
        ("--sampling.stop none", "sampling.stop", ()),
        ("--trainer.betas 0.8,0.9", "trainer.betas", (0.8, 0.9)),
        ("--trainer.betas 0.8 0.9", "trainer.betas", (0.8, 0.9)),
        ("--trainer.activation-checkpointing", "trainer.activation_checkpointing", True),
        ("--trainer.no-activation-checkpointing", "trainer.activation_checkpointing", False),
        ("--trainer.minibatches 2", "trainer.learning_rate", 1e-2),
        ("--trainer local", "trainer.learning_rate", 1e-2),
        ("--trainer.schedule.shape cosine", "trainer.schedule.shape", "cosine"),
        ("--algorithm dapo --algorithm.clip_high 0.3", "algorithm.clip_high", 0.3),
        ("--algorithm.clip_high 0.3 --algorithm dapo", "algorithm.clip_high", 0.3),
        ('--algorithm {"name":"dapo","clip_high":0.3}', "algorithm.clip_high", 0.3),
        ("--model.lora", "model.lora.rank", 16),
        ("--model.lora.rank 4", "model.lora.rank", 4),
        ("--model.lora.rank 4 --model.lora.targets q_proj,v_proj", "model.lora.targets", ("q_proj,v_proj",)),
        ("--model.lora none", "model.lora", None),
        ("--model smollm3/x", "model.model", "smollm3/x"),
        ("--data.source.digits 3", "data.source.digits", 3),
        ("--observe.loggers tensorboard,wandb --observe.loggers.wandb.project p", "observe.loggers.1.project", "p"),
        ("--run-dir a/b", "run_dir", Path("a/b")),
    ],
)
def test_an_option_goes_where_it_belongs(cls: type[Config], options: str, path: str, value: Any):
    found: Any = parse(cls, options.split())
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--iteration 3", "--iteration: no such option; did you mean --iterations?"),
        ("--rank 3 --model.lora", "--rank: no such option; did you mean --model.lora.rank?"),
        ("--iterations", "--iterations: needs a value"),
        ("--iterations 1 --iterations 2", "--iterations: given twice"),
        ("--no-iterations", "--no-iterations: cannot be turned off: give it another value"),
        ("7", "got '7', expected an option such as --name value"),
        ("--sampling 3", "--sampling: got '3', but it is a group of options: --sampling.max-new-tokens"),
        ("--iterations.x 3", "--iterations has no options of its own"),
        ("--algorithm dap", "--algorithm: unknown algorithm 'dap': did you mean 'dapo'?"),
        ("--algorithm dap --algorithm.clip-high 1", "unknown algorithm 'dap'"),
        ("--algorithm {", "expected JSON"),
        ("--observe.loggers.wandb.project p", "--observe.loggers picks nothing: add wandb to it"),
        ("--checkpoint.keep 0", "--checkpoint.keep: got '0', expected at least 1"),
        ("--sampling.top_p nan", "--sampling.top-p: got"),
    ],
)
def test_a_wrong_option_says_how_it_is_right(cls: type[Config], options: str, message: str):
    with pytest.raises(ConfigError) as caught:
        parse(cls, options.split())
    assert message in str(caught.value)
    assert str(caught.value).startswith("1 mistake in the options:")
