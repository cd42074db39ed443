# SPDX-License-Identifier: Apache-2.0
"""What a logger is: it carries a run's metrics and samples to one more place besides the run's folder."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from m2flow.errors import ConfigError
from m2flow.registry import Plugin


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The run that is logged."""

    folder: Path
    """The run's folder."""
    title: str
    """The run's name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The script's options, as JSON values."""


class Logger(Plugin, ABC):
    """Base of every logger. It is built before anything starts, so that what is missing is said at once.

    A subclass imports its package where it is used, never at the top of the file, and checks in its Config's
    ``problems`` that the package is there (``missing``).
    """

    def __init__(self, config: Any, run: RunInfo) -> None:
        self.config = config
        self.run = run

    def resume_at(self, iteration: int) -> None:
        """Called once before the first ``log``: what was logged of ``iteration`` and later ones is no longer true."""

    @abstractmethod
    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Record one iteration's metrics; values may be NaN or infinite."""

    @abstractmethod
    def samples(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record samples: prompt and completion are text, reward a number or None, further columns may follow."""

    @abstractmethod
    def close(self) -> None:
        """Write out what is left and let go."""


def missing(package: str, *, extra: str) -> list[str]:
    """A sentence that says how to install ``package``, where it is not installed; else nothing."""
    if importlib.util.find_spec(package) is not None:
        return []
    return [f"logger '{extra}' needs the package '{package}', which is not installed: pip install 'm2flow[{extra}]'"]


def require(package: str, *, extra: str) -> None:
    """Raise ConfigError where ``package`` is not installed."""
    for text in missing(package, extra=extra):
        raise ConfigError(text)
