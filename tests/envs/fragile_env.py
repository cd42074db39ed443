# SPDX-License-Identifier: Apache-2.0
"""A simulator that breaks: an environment of another package, which worker processes find by its entry point."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from m2flow.envs.base import Observations, Outcome
from m2flow.envs.toy import Toy
from m2flow.errors import SimulatorError


class Fragile(Toy):
    """``toy`` that breaks in the tick in which an action's first entry is above 0.99."""

    class Config(Toy.Config):
        """How it breaks."""

        way: str = "exit"
        """``exit``, ``kill``, ``raise``, ``hang``, ``start`` (at once) or ``begin`` (in every reset)."""

    def __init__(self, config: Any, num_rows: int) -> None:
        super().__init__(config, num_rows)
        if config.way == "start":
            raise SimulatorError("the simulator is not installed: install it")

    def reset(self, rows: Any, seeds: Any) -> Observations:
        if self.config.way == "begin":
            raise RuntimeError("no scene today")
        return super().reset(rows, seeds)

    def step(self, actions: np.ndarray) -> Outcome:
        if (actions[:, 0] > 0.99).any():
            _BREAK[self.config.way]()
        return super().step(actions)


def _hang() -> None:
    # Python handles no signal meanwhile, as in a simulator written in C.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    while True:
        signal.sigtimedwait([signal.SIGTERM], 1)


def _raise() -> None:
    raise ZeroDivisionError("a joint of length 0")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_BREAK = {"exit": lambda: os._exit(3), "kill": _kill, "raise": _raise, "hang": _hang}


def installed(folder: Path) -> str:
    """The id of the environment once ``folder`` is on the path."""
    info = folder / "fragile-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fragile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[m2flow.envs]\nfragile = fragile_env:Fragile\n")
    return "fragile"
