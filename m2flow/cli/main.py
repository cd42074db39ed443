# SPDX-License-Identifier: Apache-2.0
"""The program ``m2flow``: train, check, eval, play, export, doctor, where."""

import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from m2flow import registry
from m2flow.cli import concepts, script
from m2flow.errors import ConfigError, M2flowError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Reinforcement learning for language models and robot policies: you write a script, m2flow runs it.",
)

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
SCRIPT_OPTIONS = {**PASSED_ON, "help_option_names": []}

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, such as runs/grpo_math-0001.")]
Step = Annotated[int | None, typer.Option(help="Which checkpoint; left out, the newest.")]
Moved = Annotated[Path | None, typer.Option("--script", help="Where the run's script is now, if it was moved.")]


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except M2flowError as error:
        code = script.MISTAKE if isinstance(error, ConfigError) else script.FAILURE
        raise typer.Exit(script.complain(error, code=code)) from None


def _asks_for_help(context: typer.Context, path: Path) -> bool:
    if str(path) not in ("--help", "-h"):
        return False
    typer.echo(context.get_help())
    return True


@app.command(context_settings=SCRIPT_OPTIONS)
def train(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script that ends with mf.cli(main).")],
) -> None:
    """Run a script with the options that follow it, as python SCRIPT does. SCRIPT --help lists them."""
    if _asks_for_help(context, path):
        return
    with _readable_errors():
        if not path.is_file():
            raise ConfigError(f"there is no script {path}: give the path of a Python file")
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *context.args]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


@app.command(context_settings=SCRIPT_OPTIONS)
def check(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A script with a function main(config).")],
) -> None:
    """Look at a script's options and say everything that is wrong with them; nothing is loaded, nothing runs."""
    if _asks_for_help(context, path):
        return
    with _readable_errors():
        module = script.load_script(path)
    raise typer.Exit(script.run(module.main, [*context.args, "--check"]))


@app.command(name="eval", context_settings=PASSED_ON)
def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, or that of an exported model.")],
    *,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each prompt.")] = 1,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="How many prompts; left out, all. Of a policy that acts, episodes.")
    ] = None,
    step: Step = None,
    moved: Moved = None,
) -> None:
    """Measure a policy on held-out prompts. Options of the script may follow, to differ from the run's.

    RUN is a run's folder, or with --script a model's.
    """
    with _readable_errors():
        from m2flow.cli import trained

        found = trained.open_run(run, step=step, script=moved, argv=context.args)
        metrics = trained.evaluate(found, samples_per_prompt=samples, num_prompts=prompts)
        typer.echo(json.dumps({"step": found.step, **metrics}, indent=2))


@app.command(context_settings=PASSED_ON)
def play(
    context: typer.Context,
    run: Run,
    *,
    out: Annotated[Path, typer.Option(help="The film, a new file.")] = Path("play.mp4"),
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes it shows.")] = 3,
    step: Step = None,
    moved: Moved = None,
) -> None:
    """Film a run's policy in its simulator. Options of the script may follow, to differ from the run's."""
    with _readable_errors():
        from m2flow.cli import trained

        if out.exists():
            raise ConfigError(f"{out} is there already: give another name")
        found = trained.open_run(run, step=step, script=moved, argv=context.args)
        film = trained.film(found, episodes)
        out.write_bytes(film.mp4)
        typer.echo(f"wrote {film.num_pictures} pictures of the policy after iteration {found.step} to {out}")


@app.command()
def doctor() -> None:
    """Say what this machine lacks for simulators, each with the command that mends it."""
    for name in registry.names("envs"):
        simulator: Any = registry.load("envs", name)
        missing = simulator.doctor()
        typer.echo(f"{name}: " + ("; ".join(missing) or "ready"))


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    *,
    merged: Annotated[
        bool, typer.Option("--merged/--adapter", help="The whole model, or the adapter alone (peft format).")
    ] = True,
    step: Step = None,
    moved: Moved = None,
) -> None:
    """Write a run's policy as a plain Hugging Face folder."""
    with _readable_errors():
        from m2flow.cli import trained

        found = trained.open_run(run, step=step, script=moved)
        found.policy.save(out, merged=merged)
        typer.echo(f"wrote the policy after iteration {found.step} to {out}")


@app.command()
def where(
    concept: Annotated[
        str,
        typer.Argument(
            help="A plug-in, class, function, room or term: grpo, Learner, group.", autocompletion=concepts.beginning
        ),
    ],
    edit: Annotated[bool, typer.Option("--open", help="Open the first place in $EDITOR.")] = False,
    *,
    every: Annotated[bool, typer.Option("--all", help="Show all places, not only the first ten.")] = False,
) -> None:
    """Print the file of a concept."""
    with _readable_errors():
        places = concepts.where(concept)
        for place in places if every else places[:10]:
            typer.echo(f"{place.path}:{place.line}  {place.name}  {place.summary}".rstrip())
        if len(places) > 10 and not every:
            typer.echo(f"and {len(places) - 10} more: --all shows them")
        if edit:
            concepts.open_in_editor(places[0])


if __name__ == "__main__":
    app()
