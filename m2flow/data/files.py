# SPDX-License-Identifier: Apache-2.0
"""Files that hold rows: one, or a folder of them."""

from pathlib import Path
from typing import ClassVar

from m2flow.data.rows import RowsConfig
from m2flow.errors import DataError


class FilesConfig(RowsConfig):
    """Rows that come from files."""

    suffix: ClassVar[str]
    """Ending of the files in a folder."""

    path: Path
    """A file, or a folder whose files are read in the order of their names."""

    def problems(self) -> list[str]:
        """The path leads nowhere, besides what may be wrong with the columns."""
        missing = [] if self.path.exists() else [f"path: there is no file or folder {self.path}"]
        return [*missing, *super().problems()]


def files_of(config: FilesConfig) -> list[Path]:
    """The files to read, sorted.

    Raises:
        DataError: there are none.
    """
    if config.path.is_file():
        return [config.path]
    found = sorted(config.path.glob(f"*{config.suffix}")) if config.path.is_dir() else []
    if not found:
        what = f"no {config.suffix} files in the folder" if config.path.is_dir() else "no file or folder"
        raise DataError(f"there is {what} {config.path}: check the path of the data set")
    return found
