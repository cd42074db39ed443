# SPDX-License-Identifier: Apache-2.0
"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the package."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from written import ROOT, read

_RECIPE = re.compile(r"<!-- (m2flow/\S+\.py) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RECIPES: dict[str, str] = dict(_RECIPE.findall(read("CONTRIBUTING.md")))
Python = Callable[..., str]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """Runs Python where the package is a copy into which the files of the recipes were dropped, and nothing else."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "m2flow", root / "m2flow", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "examples", root / "examples")
    for path, code in RECIPES.items():
        (root / path).write_text(code, encoding="utf-8")

    def run(*words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_recipes_are_short_and_begin_as_every_file_does():
    assert sorted(RECIPES) == ["m2flow/algorithms/reinforce.py", "m2flow/rewards/length_limit.py"]
    for code in RECIPES.values():
        assert code.startswith("# SPDX-License-Identifier: Apache-2.0\n")
        assert len(code_lines(code)) <= 15


def code_lines(source: str) -> list[str]:
    """Lines that do something: no docstrings, no imports."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [n for n in node.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return [line for line in ast.unparse(tree).splitlines() if line and not line.startswith(("from ", "import "))]


def test_a_dropped_in_algorithm_trains_and_its_options_are_in_the_help(python: Python, tmp_path: Path):
    script = ("examples/reasoning/grpo_math.py", "--algorithm", "reinforce")
    shown = python(*script, "--help")
    assert "algorithm: reinforce" in shown and "--algorithm.scale number > 0" in shown
    assert "Multiplies the advantages. [1.0]" in shown
    small = ("--iterations", "2", "--prompts-per-iteration", "4", "--evaluate-every", "0", "--observe.quiet")
    python(*script, "--algorithm.scale", "2.0", *small, "--run-dir", str(tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["learner/version"] for line in lines] == [1, 2]
    assert all(line["policy/grad_norm"] > 0 for line in lines)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["config"]["algorithm"] == {"name": "reinforce", "scale": 2.0}


SCORING = """
import json
import numpy as np
import m2flow as mf

numbers = np.zeros(1, np.float32)
log = {"logprobs": numbers, "sampled_logprobs": numbers, "entropies": numbers}

def sample(text):
    return mf.Sample(index=0, token_ids=np.zeros(1, np.int64), versions=np.zeros(1, np.int32), text=text,
                     finish_reason="stop", **log)

group = mf.Group(prompt=mf.Prompt(id="one", text="?"), prompt_ids=np.zeros(1, np.int64),
                 samples=[sample("short"), sample("x" * 21), sample("x" * 201)])
for given in ("length_limit", {"name": "length_limit", "characters": 20}):
    scored = list(mf.Reward(given).score([group]))
    print(json.dumps([s.reward for s in scored[0].samples]))
"""


def test_a_dropped_in_reward_scores_by_name_and_with_its_option(python: Python):
    assert python("-c", SCORING).splitlines() == ["[1.0, 1.0, 0.0]", "[1.0, 0.0, 0.0]"]
