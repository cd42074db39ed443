# SPDX-License-Identifier: Apache-2.0
"""The example that acts, in the simulator that needs nothing, and the program on its run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from m2flow.cli import script
from m2flow.envs.toy import Toy

Program = Callable[..., Result]
EXAMPLE = Path(__file__).parents[2] / "examples" / "embodied" / "ppo_maniskill3.py"


@pytest.fixture(scope="module")
def acted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("acted") / "run"
    options = f"--env toy --iterations 2 --steps 64 --num-rows 4 --run-dir {folder} --observe.quiet"
    assert script.run(script.load_script(EXAMPLE).main, options.split()) == 0
    return folder


def test_the_example_logs_evaluations_and_keeps_their_films(acted: Path) -> None:
    lines = [json.loads(line) for line in (acted / "metrics.jsonl").read_text().splitlines()]
    assert [line["held_out/num"] for line in lines] == [100, 100]
    assert len(list((acted / "videos").iterdir())) == 2


def test_a_policy_that_acts_is_measured_as_in_its_run(m2flow: Program, acted: Path) -> None:
    result = m2flow("eval", acted, "--prompts", 20)
    found = json.loads(result.output)
    assert found["step"] == 2 and found["episode/num"] == 20
    assert json.loads(m2flow("eval", acted, "--prompts", 20).output) == found


def test_play_films_it_and_overwrites_nothing(m2flow: Program, acted: Path, tmp_path: Path) -> None:
    out = tmp_path / "film.mp4"
    result = m2flow("play", acted, "--out", out, "--episodes", 2)
    assert result.exit_code == 0 and "after iteration 2" in result.output and out.stat().st_size > 1000
    refused = m2flow("play", acted, "--out", out)
    assert refused.exit_code == 2 and "is there already" in refused.output


def test_a_policy_that_answers_cannot_be_played(m2flow: Program, run_folder: Path, tmp_path: Path) -> None:
    result = m2flow("play", run_folder, "--out", tmp_path / "film.mp4")
    assert result.exit_code == 2 and "answers prompts" in result.output


def test_the_doctor_says_of_every_simulator_what_is_missing(m2flow: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "doctor", classmethod(lambda cls: ["no sand: buy some"]))
    result = m2flow("doctor")
    assert result.exit_code == 0 and "toy: no sand: buy some" in result.output and "gymnasium: " in result.output
