# SPDX-License-Identifier: Apache-2.0
"""Trackio: a local dashboard; nothing leaves the machine unless a Space is named."""

import contextlib
import io
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from m2flow import config
from m2flow.observe.loggers.base import Logger, RunInfo, missing, require

NAME_FILE = "trackio-name.txt"


class Trackio(Logger):
    """Look at it with ``trackio show``."""

    class Config(config.Config):
        """Where the run appears."""

        project: str = "m2flow"
        """Name of the project."""
        space: str | None = None
        """Hugging Face Space that shows the run to others (``user/name``); left out, the run stays on this machine."""

        def problems(self) -> list[str]:
            """Whether the package is there."""
            return missing("trackio", extra="trackio")

    def __init__(self, config: Config, run: RunInfo) -> None:
        super().__init__(config, run)
        require("trackio", extra="trackio")
        import trackio

        self._service = trackio
        with _hushed():
            self._run = trackio.init(
                project=config.project,
                name=self._name(),
                space_id=config.space,
                config=dict(run.settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def _name(self) -> str:
        # Trackio finds a run to resume by its name alone, and runs of other folders may have the same title.
        path = self.run.folder / NAME_FILE
        if not path.exists():
            path.write_text(f"{self.run.title}-{secrets.token_hex(2)}", encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """One row."""
        self._run.log(dict(metrics), step=iteration)

    def samples(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """One table."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[_cell(row.get(key)) for key in columns] for row in rows]
        self._run.log({"samples": self._service.Table(columns=columns, data=data)}, step=iteration)

    def close(self) -> None:
        """Write out what is left."""
        with _hushed():
            self._service.finish()


def _hushed() -> contextlib.AbstractContextManager[Any]:
    # Trackio prints hints to the console, between the lines of the progress display.
    return contextlib.redirect_stdout(io.StringIO())


def _cell(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)
