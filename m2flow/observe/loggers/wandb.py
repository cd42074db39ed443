# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases, online or offline; a resumed run goes on under the same id."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from m2flow import config
from m2flow.errors import ConfigError
from m2flow.observe.loggers.base import Logger, RunInfo, missing, require

ID_FILE = "wandb-id.txt"


class Wandb(Logger):
    """Offline runs lie in the run's folder, under ``wandb``; ``wandb sync`` uploads them."""

    class Config(config.Config):
        """Where the run appears."""

        project: str = "m2flow"
        """Name of the project."""
        entity: str | None = None
        """User or team that owns the project; left out, the account's default."""
        mode: Literal["offline", "online"] = "offline"
        """offline writes to the run's folder alone; online uploads while the run goes on, and needs an account."""

        def problems(self) -> list[str]:
            """Whether the package is there."""
            return missing("wandb", extra="wandb")

    def __init__(self, config: Config, run: RunInfo) -> None:
        super().__init__(config, run)
        require("wandb", extra="wandb")
        import wandb

        self._service = wandb
        try:
            self._run = self._begin()
        except wandb.Error as error:
            raise ConfigError(f"W&B did not start: {error}; log in with `wandb login`, or take mode offline") from error
        # The iteration is the axis, not W&B's own counter, which would refuse iterations that a resume repeats.
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")

    def _begin(self) -> Any:
        return self._service.init(
            project=self.config.project,
            entity=self.config.entity,
            mode=self.config.mode,
            name=self.run.title,
            id=self._id(),
            resume="allow",
            dir=str(self.run.folder),
            config=dict(self.run.settings),
            settings=self._service.Settings(silent=True, console="off"),
        )

    def _id(self) -> str:
        path = self.run.folder / ID_FILE
        if not path.exists():
            path.write_text(secrets.token_hex(4), encoding="utf-8")
        return path.read_text(encoding="utf-8").strip()

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """One row of history."""
        self._run.log({"iteration": iteration, **metrics})

    def samples(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """One table."""
        columns: list[Any] = ["iteration", *dict.fromkeys(key for row in rows for key in row)]
        data: list[Any] = [[iteration, *(_cell(row.get(key)) for key in columns[1:])] for row in rows]
        self._run.log({"iteration": iteration, "samples": self._service.Table(columns=columns, data=data)})

    def close(self) -> None:
        """Finish the run: wait for uploads, and until an offline run's file is whole on the disk."""
        self._run.finish()
        # An offline run's ``finish`` returns while W&B's own process still writes the file; its end is waited for
        # here, unless the script has another run open in it.
        if self._service.run is None:
            self._service.teardown()


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)
