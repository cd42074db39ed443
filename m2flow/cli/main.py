# SPDX-License-Identifier: Apache-2.0
"""The command ``m2flow``."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="m2flow", help="Reinforcement learning: you write the flow, the system runs it.", no_args_is_help=True
)
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Options after the script are the script's own, its --help too."""


@app.command(context_settings=PASSED_ON)
def train(
    context: typer.Context, script: Annotated[Path, typer.Argument(help="The script, then its options.")]
) -> None:
    """Run a training script."""
    _run(script, context.args)


@app.command(context_settings=PASSED_ON)
def check(
    context: typer.Context, script: Annotated[Path, typer.Argument(help="The script, then its options.")]
) -> None:
    """Report every mistake in a script's options; nothing is loaded."""
    _run(script, [*context.args, "--check"])


def _run(script: Path, arguments: list[str]) -> None:
    if not script.is_file():
        print(f"no script {script}: give the path of a Python file", file=sys.stderr)
        raise typer.Exit(2)
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


@app.command()
def report(run: Annotated[Path, typer.Argument(help="The run's folder.")]) -> None:
    """Write a run's report again from what it logged."""
    from m2flow.observe import report as pages

    print(pages.write(run))


if __name__ == "__main__":
    app()
