# SPDX-License-Identifier: Apache-2.0
"""Running a script's ``main(config)`` from the command line; a mistake that a user can mend gets no traceback."""

import os
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Any

from m2flow.cli.overrides import help_text, parse
from m2flow.config import Config
from m2flow.errors import ConfigError, M2flowError

TRACEBACK = "M2FLOW_TRACEBACK"
"""Environment variable: set, mistakes show their traceback too."""


def config_class(main: Callable[[Any], None]) -> type[Config]:
    """The Config that ``main`` takes, from the annotation of its parameter.

    Raises:
        ConfigError: there is none.
    """
    kinds = [kind for name, kind in typing.get_type_hints(main).items() if name != "return"]
    if len(kinds) != 1 or not (isinstance(kinds[0], type) and issubclass(kinds[0], Config)):
        raise ConfigError("main must take one parameter, annotated with a Config: def main(config: Config) -> None")
    return kinds[0]


def cli(main: Callable[[Any], None], arguments: Sequence[str] | None = None) -> None:
    """Parse the command line into the Config that ``main`` takes and call it; leaves the process when it fails.

    ``--help`` lists the options, ``--check`` only says whether the run could start. Exit codes: 2 for a mistake in the
    options, 1 for an error of the run, 130 when interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _run(main, given)
    except ConfigError as error:
        _leave(error, 2)
    except M2flowError as error:
        _leave(error, 1)
    except KeyboardInterrupt:
        print("interrupted: go on from the newest checkpoint with --resume auto", file=sys.stderr)
        sys.exit(130)


def _run(main: Callable[[Any], None], given: list[str]) -> None:
    cls = config_class(main)
    if "--help" in given or "-h" in given:
        print(help_text(cls, f"usage: {os.path.basename(sys.argv[0])} [--option value ...] [--check]"))
        return
    config = parse(cls, [argument for argument in given if argument != "--check"])
    if "--check" in given:
        print("no mistakes found")
        return
    main(config)


def _leave(error: M2flowError, code: int) -> typing.NoReturn:
    if os.environ.get(TRACEBACK):
        raise error
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(code)
