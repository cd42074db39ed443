# SPDX-License-Identifier: Apache-2.0
"""What is typed in a terminal: the program ``m2flow``, and ``mf.cli(main)`` for scripts."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """Importing this package makes Python bind ``m2flow.cli`` to it, so that it has to be ``mf.cli`` as well."""

    def __call__(self, main: Callable[..., Any], argv: Sequence[str] | None = None) -> None:
        """The same as ``m2flow.cli.script.cli``."""
        from m2flow.cli.script import cli

        cli(main, argv)


sys.modules[__name__].__class__ = _CallableModule
