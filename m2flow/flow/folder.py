# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: where it is, who holds it, and which settings it was started with."""

import fcntl
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from m2flow.errors import CheckpointError, ConfigError, FlowError
from m2flow.observe.line_file import replace

CONFIG = "config.json"
RESULTS = ("metrics.jsonl", "checkpoints")
"""What a run leaves from its first iteration on. Until then its folder holds nothing that could be lost."""
FREE_TO_CHANGE = ("iterations", "resume", "run_dir", "observe", "checkpoint", "runtime")
"""Settings that a resumed run may change: they do not touch the numbers of the iterations before."""


def script_of(config: Any) -> str:
    """Path of the script that defines ``config``'s class; empty in an interactive session."""
    return getattr(sys.modules[type(config).__module__], "__file__", None) or ""


def locate(config: Any) -> Path:
    """The run's folder: as given, or ``runs/<script>-<number>``: the newest with ``resume='auto'``, else a new one."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    stem = Path(script_of(config)).stem or "run"
    root = Path("runs")
    numbers = sorted(int(m[1]) for path in root.glob(f"{stem}-*") if (m := re.fullmatch(rf"{stem}-(\d+)", path.name)))
    last = numbers[-1] if numbers else 0
    return root / f"{stem}-{last if last and config.resume == 'auto' else last + 1:04d}"


class RunFolder:
    """A run's folder, held by this process alone while the run is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        """Create and lock it.

        Raises:
            FlowError: another process holds it, or it cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise FlowError(
                f"cannot write the run's folder {self.path}: {error.strerror}; choose another --run-dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FlowError(
                f"another process is running in {self.path}; wait for it or choose another --run-dir"
            ) from None

    def close(self) -> None:
        """Let go of it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holds_results(self) -> bool:
        """Whether a run got as far as its first iteration's end here."""
        return any((self.path / name).exists() for name in RESULTS)

    def write_config(self, config: Any) -> None:
        """Save the settings and the script's path as config.json, atomically.

        Raises:
            M2flowError: the disk is full, or the folder cannot be written.
        """
        text = json.dumps({"script": os.path.abspath(script_of(config)), "config": config.to_dict()}, indent=2)
        replace(self.path / CONFIG, f"{text}\n".encode())

    def read_config(self) -> dict[str, Any]:
        """What ``write_config`` saved.

        Raises:
            CheckpointError: the folder holds no run, or the file is damaged.
        """
        path = self.path / CONFIG
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.path} holds no run: {CONFIG} is missing; give a folder that training made"
            ) from None
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged ({error}); restore it or start a new run") from None

    def require_same(self, config: Any) -> None:
        """Refuse to resume with settings that would make the resumed run another run.

        Raises:
            ConfigError: lists every setting that differs.
        """
        before, now = _flat(self.read_config()["config"]), _flat(config.to_dict())
        changed = [
            f"  {key}: was {before.get(key)!r}, now {now.get(key)!r}"
            for key in sorted({*before, *now})
            if before.get(key) != now.get(key) and key.split(".")[0] not in FREE_TO_CHANGE
        ]
        if changed:
            raise ConfigError(
                f"cannot resume {self.path} with other settings (free to change: {', '.join(FREE_TO_CHANGE)}):\n"
                + "\n".join(changed)
                + "\nGive the old values, or start a new run with --resume never."
            )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value for name, sub in tree.items() for key, value in _flat(sub, f"{prefix}.{name}".lstrip(".")).items()
    }
