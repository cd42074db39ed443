# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files, in the run's folder unless another is given."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2flow import config
from m2flow.observe.loggers.base import Logger, RunInfo, missing, require

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class Tensorboard(Logger):
    """Look at it with ``tensorboard --logdir runs``."""

    class Config(config.Config):
        """Where the event files go."""

        folder: Path | None = None
        """Folder of the event files; left out, ``tensorboard`` in the run's folder."""

        def problems(self) -> list[str]:
            """Whether the package is there."""
            return missing("tensorboard", extra="tensorboard")

    def __init__(self, config: Config, run: RunInfo) -> None:
        super().__init__(config, run)
        require("tensorboard", extra="tensorboard")
        self._first: int | None = None
        self._writer: SummaryWriter | None = None

    def _open(self) -> "SummaryWriter":
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = self.config.folder or self.run.folder / "tensorboard"
        # purge_step hides the points that an interrupted run wrote after its last checkpoint.
        return SummaryWriter(log_dir=str(folder), purge_step=self._first)

    @property
    def writer(self) -> "SummaryWriter":
        """The event file, opened by the first use."""
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    def resume_at(self, iteration: int) -> None:
        """Hide what was logged of later iterations."""
        self._first = iteration or None

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, iteration)
        self.writer.flush()

    def samples(self, iteration: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """One text panel a sample, each part as it is (TensorBoard would read it as Markdown)."""
        for index, row in enumerate(rows):
            text = f"reward {row.get('reward')}\n\n{row['prompt']}\n\n{row['completion']}"
            quoted = "\n".join(f"    {line}" for line in text.splitlines())
            self.writer.add_text(f"samples/{index}", quoted, iteration)

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
