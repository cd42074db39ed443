# SPDX-License-Identifier: Apache-2.0
"""A script's command line: exit codes, and what is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from m2flow.cli.script import load_script, run
from m2flow.config import Config
from m2flow.errors import ConfigError, DataError
from m2flow.flow.signals import Stopped


class Options(Config):
    """One option."""

    number: int = 1
    """A number."""


def _raises(error: BaseException) -> Callable[[Options], None]:
    def main(config: Options) -> None:
        raise error

    return main


def _noted() -> DataError:
    error = DataError("the cause")
    error.add_note("the consequence")
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (DataError("bad rows\n  row 1"), 1, ["error: bad rows", "  row 1", "M2FLOW_TRACEBACK=1 shows where"]),
        (ConfigError("bad option"), 2, ["error: bad option"]),
        (_noted(), 1, ["error: the cause", "and then: the consequence"]),
        (KeyboardInterrupt(), 130, ["stopped"]),
        (
            Stopped("saved after 3 iterations", number=15, folder="runs/a b"),
            143,
            ["stopped: saved after 3 iterations", "--number 2 --run-dir 'runs/a b' --resume auto"],
        ),
    ],
)
def test_every_end_has_its_code_and_words(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: list[str]
):
    assert run(_raises(error), ["--number", "2"]) == code
    printed = capsys.readouterr()
    assert all(words in printed.err for words in said) and not printed.out
    assert "Traceback" not in printed.err


def test_a_traceback_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("M2FLOW_TRACEBACK", "1")
    assert run(_raises(DataError("bad rows")), []) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_mistake_of_the_program_s_own_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(_raises(ZeroDivisionError()), [])


def test_options_are_looked_at_before_anything_runs(capsys: pytest.CaptureFixture[str]):
    assert run(_raises(AssertionError()), ["--nmber", "2"]) == 2
    assert "--nmber: no such option; did you mean --number?" in capsys.readouterr().err
    assert run(_raises(AssertionError()), ["--check"]) == 0
    assert run(_raises(AssertionError()), ["--check", "--number", "x"]) == 2
    assert run(_raises(AssertionError()), ["--help"]) == 0
    assert "--number int" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def main(:", r"broken.py:1: invalid syntax"),
        ("x = 1", "has no function main: define"),
    ],
)
def test_a_broken_script_is_named(tmp_path: Path, text: str, message: str):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_script(tmp_path / "broken.py")


def test_a_main_without_a_config_is_explained(capsys: pytest.CaptureFixture[str]):
    def main(config: int) -> None:
        pass

    assert run(main, []) == 2
    assert "must have one parameter whose type is a Config" in capsys.readouterr().err
