# SPDX-License-Identifier: Apache-2.0
"""The program m2flow, command by command."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import Result

from m2flow.cli import trained
from m2flow.policies.language.model_files import TINY
from m2flow.policies.language.probe import CausalLayout

Program = Callable[..., Result]
TOKENS = torch.arange(3, 20)[None]
CAUSAL: Any = AutoModelForCausalLM


def _logits(policy: Any) -> torch.Tensor:
    number = TOKENS.shape[1]
    return policy.logits(policy.hidden(TOKENS[0], torch.arange(number), layout=CausalLayout((number,))))[None]


def test_an_exported_model_is_the_trained_policy_to_any_other_software(
    m2flow: Program, run_folder: Path, script_path: Path, tmp_path: Path
):
    result = m2flow("export", run_folder, tmp_path / "merged")
    assert result.exit_code == 0 and f"wrote the policy after iteration 2 to {tmp_path / 'merged'}" in result.output
    policy = trained.open_run(run_folder).policy
    plain = CAUSAL.from_pretrained(tmp_path / "merged")
    bare = CAUSAL.from_pretrained(TINY, dtype=torch.float32)
    with torch.no_grad():
        ours = _logits(policy)
        assert torch.allclose(plain(TOKENS).logits, ours, atol=2e-4)
        assert not torch.allclose(bare(TOKENS).logits, ours, atol=1e-2)
    # The exported folder is evaluated like the run, and as well.
    options = ("--prompts", 40, "--sampling.temperature", 0)
    of_run = json.loads(m2flow("eval", run_folder, *options).output)
    of_model = json.loads(m2flow("eval", tmp_path / "merged", "--script", script_path, *options).output)
    assert of_run.pop("step") == 2 and of_model.pop("step") == 0
    assert of_run == of_model and of_run["reward/samples"] == 40


def test_an_exported_adapter_is_one_for_peft(m2flow: Program, run_folder: Path, tmp_path: Path):
    peft = pytest.importorskip("peft")
    assert m2flow("export", run_folder, tmp_path / "adapter", "--adapter").exit_code == 0
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 2_000_000
    model = peft.PeftModel.from_pretrained(CAUSAL.from_pretrained(TINY, dtype=torch.float32), tmp_path / "adapter")
    policy = trained.open_run(run_folder).policy
    with torch.no_grad():
        assert torch.allclose(model(TOKENS).logits, _logits(policy), atol=2e-4)


def test_any_checkpoint_is_exported(m2flow: Program, run_folder: Path, tmp_path: Path):
    assert "after iteration 1" in m2flow("export", run_folder, tmp_path / "first", "--step", 1).output
    result = m2flow("export", run_folder, tmp_path / "none", "--step", 7)
    assert result.exit_code == 1 and "has no checkpoint of step 7; it has 1, 2" in result.output


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("eval", "{tmp}"), 1, "holds no run: config.json is missing; give a folder that training made"),
        (("export", "{tmp}", "{tmp}/out"), 1, "holds no run"),
        (("eval", str(TINY)), 2, "is a model, no run: say whose held-out prompts it is to answer, with --script"),
        (("eval", "{run}", "--sampling.temprature", "1"), 2, "did you mean --sampling.temperature?"),
        (("eval", "{run}", "--script", "{tmp}/nope.py"), 2, "there is no script"),
        (("export", "{run}", "{run}"), 1, "is not an empty folder: give a new one"),
        (("train", "{tmp}/nope.py"), 2, "there is no script"),
        (("check", "{tmp}/nope.py"), 2, "there is no script"),
        (("where", "grpoo"), 2, "did you mean grpo"),
        (("trian",), 2, "Did you mean 'train'?"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_ends_with_its_code(
    m2flow: Program, run_folder: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
):
    result = m2flow(*(word.format(tmp=tmp_path, run=run_folder) for word in words))
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_check_names_every_mistake_at_once(m2flow: Program, script_path: Path):
    options = (
        "--iterations x --sampling.temprature 1 --algorithm dapo --algorithm.clip-high -1 --trainer.minibatches 3 "
        "--sampling.max-new-tokens 2000 --model /nope --data.source jsonl"
    )
    result = m2flow("check", script_path, *options.split())
    assert result.exit_code == 2
    for mistake in (
        "--iterations: got 'x', expected a whole number",
        "--sampling.temprature: no such option; did you mean --sampling.temperature?",
        "--algorithm.clip-high: got '-1', expected",
        "--data.source.path: required, and not given",
        "4 groups cannot be cut into minibatches=3 equal parts",
        "one response may have 2000 tokens, more than max_tokens_per_microbatch=1024",
        "--model: no folder /nope",
    ):
        assert mistake in result.output, result.output


def test_check_loads_no_model_and_nothing_that_only_a_run_needs(script_path: Path):
    program = (
        "import sys, m2flow.cli.main as main\n"
        "try: main.app()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(*{'transformers', 'peft', 'datasets', 'pyarrow', 'math_verify', 'safetensors'} & set(sys.modules))"
    )
    argv = [sys.executable, "-c", program, "check", str(script_path), "--algorithm", "ppo"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    assert done.stdout.splitlines() == [f"{script_path}: the options are right", ""]


def test_training_passes_options_on_and_the_help_of_a_script_is_reached(m2flow: Program, script_path: Path):
    result = m2flow("train", script_path, "--algorithm", "dapo", "--help")
    assert result.exit_code == 0 and "--algorithm.clip-high" in result.output and "A small run." in result.output
    result = m2flow("train", script_path, "--algorithm.overlong-factor", "0.3")
    assert result.exit_code == 2 and "not an option of what --algorithm picks, but of" in result.output


def test_where_prints_files_and_opens_them(m2flow: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = m2flow("where", "Learner").output.splitlines()[0]
    assert first.startswith(str(Path(trained.__file__).parents[1] / "flow" / "learner.py:"))
    editor = tmp_path / "vim"
    editor.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/opened\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    assert m2flow("where", "Dr. GRPO", "--open").exit_code == 0
    assert (tmp_path / "opened").read_text().split()[-1].endswith("algorithms/dr_grpo.py")
    monkeypatch.setenv("VISUAL", str(tmp_path / "nope"))
    assert "is not there: set EDITOR to one that is" in m2flow("where", "grpo", "--open").output


@pytest.mark.parametrize(
    ("typed", "offered"), [("m2flow tr", "train"), ("m2flow where dr_g", "dr_grpo"), ("m2flow where Learn", "Learner")]
)
def test_the_shell_completes_commands_and_concepts(m2flow: Program, typed: str, offered: str):
    from typer.testing import CliRunner

    from m2flow.cli.main import app

    words = {"_M2FLOW_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    result = CliRunner().invoke(app, [], prog_name="m2flow", env=words)
    assert offered in result.output.split()
