# SPDX-License-Identifier: Apache-2.0
"""A script's command line: ``mf.cli(main)`` makes its Config from the options, and its errors readable."""

import contextlib
import importlib.util
import inspect
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from rich.console import Console
from rich.text import Text

from m2flow.cli.overrides import parse
from m2flow.config import Config
from m2flow.errors import ConfigError, M2flowError
from m2flow.flow.signals import Stopped

MISTAKE, FAILURE, SIGNALLED = 2, 1, 128
"""Exit codes: options that cannot be used, an error while running; 128 and the number of the signal that stopped it."""
TRACEBACK = "M2FLOW_TRACEBACK"
"""Environment variable that asks for whole tracebacks."""


def cli(main: Callable[..., Any], argv: Sequence[str] | None = None) -> None:
    """Run ``main(config)`` with the options in ``argv`` (those of the process, unless given).

    The class of the configuration is the type of ``main``'s first parameter. ``--help`` explains the options,
    ``--check``
    only looks at them. Where something is wrong the process ends with code 2 (options) or 1 (while running), and a
    message instead of a traceback; ``M2FLOW_TRACEBACK=1`` shows that too.
    """
    code = run(main, sys.argv[1:] if argv is None else argv)
    if code:
        sys.exit(code)


def run(main: Callable[..., Any], argv: Sequence[str]) -> int:
    """The same, but for the exit: returns the process's exit code."""
    words = [word for word in argv if word not in ("--help", "-h", "--check")]
    try:
        cls = config_class(main)
        if len(words) < len(argv) and "--check" not in argv:
            return show_help(main, cls, argv=words)
        config = parse(cls, words)
    except ConfigError as error:
        return complain(error, code=MISTAKE, hint="--help lists the options")
    if "--check" in argv:
        Console(highlight=False, soft_wrap=True).print(Text(f"{_name(main)}: the options are right", style="green"))
        return 0
    try:
        main(config)
    except M2flowError as error:
        return complain(error, code=MISTAKE if isinstance(error, ConfigError) else FAILURE)
    except KeyboardInterrupt as stop:
        return _interrupted(main, stop, words=words)
    return 0


def config_class(main: Callable[..., Any]) -> type[Config]:
    """The type of ``main``'s first parameter.

    Raises:
        ConfigError: it has none, or one that is no Config.
    """
    parameters = list(inspect.signature(main).parameters)
    found = get_type_hints(main).get(parameters[0]) if parameters else None
    if not (inspect.isclass(found) and issubclass(found, Config)):
        raise ConfigError(
            f"{main.__name__} of {_name(main)} must have one parameter whose type is a Config: "
            "def main(config: Config) -> None, where Config is a class derived from mf.RunConfig"
        )
    return found


def show_help(main: Callable[..., Any], cls: type[Config], *, argv: Sequence[str]) -> int:
    """Print the help of ``main``'s options."""
    from rich.console import Console

    from m2flow.cli.option_help import WIDTH, help_view

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    module = inspect.getmodule(main)
    about = "\n\n".join(filter(None, (inspect.getdoc(module) if module else None, inspect.getdoc(cls))))
    console.print(help_view(cls, argv, title=f"python {_name(main)}", about=about))
    return 0


def _name(main: Callable[..., Any]) -> str:
    path = Path(inspect.getsourcefile(main) or "script.py")
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)


def complain(error: M2flowError, *, code: int, hint: str = "") -> int:
    """Print what is wrong, for a person to read; returns ``code``."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
        return code
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    head, _, rest = str(error).partition("\n")
    rest = "\n".join(filter(None, (rest, *(f"and then: {note}" for note in _notes(error)))))
    console.print(Text.assemble(("error: ", "bold red"), (head, "bold")))
    body = Text(rest)
    body.highlight_regex(r"(?m)^  --[\w.\[\]-]+", "bold yellow")
    if rest:
        console.print(body)
    hint = f"{TRACEBACK}=1 shows where it was raised" if code == FAILURE else hint
    if hint:
        console.print(Text(hint, style="dim"))
    return code


def _notes(error: BaseException) -> list[str]:
    """What ``add_note`` added."""
    return vars(error).get("__notes__", [])


def _interrupted(main: Callable[..., Any], stop: KeyboardInterrupt, *, words: Sequence[str]) -> int:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(f"stopped: {stop}" if str(stop) else "stopped", style="bold"))
    if not isinstance(stop, Stopped):
        return SIGNALLED + signal.SIGINT
    kept = _without_options(words, ("resume", "run_dir"))
    command = shlex.join(["python", _name(main), *kept, "--run-dir", str(stop.folder), "--resume", "auto"])
    console.print(Text(f"go on from the newest checkpoint with: {command}"))
    return SIGNALLED + stop.number


def _without_options(words: Sequence[str], names: Sequence[str]) -> list[str]:
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("-", "_") in names
        kept += [] if dropping else [word]
    return kept


def load_script(path: Path) -> ModuleType:
    """The module that a script is, without running its main.

    Raises:
        ConfigError: there is no such file, it is no Python, or it has no function ``main``.
    """
    if not path.is_file():
        raise ConfigError(f"there is no script {path}: give the path of a Python file")
    spec = importlib.util.spec_from_file_location(f"m2flow_script_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file: give the path of a script that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not callable(getattr(module, "main", None)):
        raise ConfigError(f"{path} has no function main: define main(config: Config) and end with mf.cli(main)")
    return module
