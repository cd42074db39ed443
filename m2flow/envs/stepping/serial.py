# SPDX-License-Identifier: Apache-2.0
"""All rows in this process, one part after another: a breakpoint in a simulator stops here, and so does its error."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from m2flow.envs.base import Env, Observations
from m2flow.envs.stepping.base import Stepper, Tick
from m2flow.envs.stepping.episodes import Rows, joined, taken
from m2flow.errors import SimulatorError


class SerialStepper(Stepper):
    """``num_rows`` rows in ``num_parts`` parts, each a simulator of its own.

    Args:
        make: from a number of rows to the simulator that holds them.
        group_size: of so many rows, one after another, equal numbers of episodes begin in equal states.

    Raises:
        SimulatorError: rows that cannot be cut into such parts, or more of them than the simulator can hold.
    """

    def __init__(self, make: Callable[[int], Env], *, num_rows: int, num_parts: int = 1, group_size: int = 1) -> None:
        super().__init__(num_rows=num_rows, num_parts=num_parts, group_size=group_size)
        self._parts: list[Rows] = []
        for part in range(num_parts):
            numbers = range(num_rows)[self.rows(part)]
            env = make(len(numbers))
            self._parts.append(Rows(env, numbers, group_size=group_size))
            if env.max_rows is not None and num_rows > env.max_rows:
                self.close()
                raise SimulatorError(
                    f"{env.name} holds at most {env.max_rows} rows in one process, {num_rows} were asked for: let "
                    "workers step them"
                )
        self.env_name, self.interface = self._parts[0].env.name, self._parts[0].env.interface
        self._sent: list[np.ndarray] = [np.zeros(0)] * num_parts

    def _begin(self, seed: int) -> list[Observations]:
        return [part.reset(seed) for part in self._parts]

    def _send(self, part: int, actions: np.ndarray) -> None:
        """Kept: the tick is made when it is received."""
        self._sent[part] = actions

    def _receive(self, part: int) -> Tick:
        return self._parts[part].tick(self._sent[part])

    def render(self, row: int) -> np.ndarray:
        """See ``Stepper.render``."""
        part, place = divmod(row, self.num_rows // self.num_parts)
        return self._parts[part].env.render(place)

    def _rows_state(self) -> dict[str, list[Any]]:
        return joined([part.state() for part in self._parts])

    def _load(self, state: Mapping[str, Any]) -> list[Observations]:
        return [part.load_state(self.seed, taken(state, self.rows(i))) for i, part in enumerate(self._parts)]

    def close(self) -> None:
        """See ``Stepper.close``."""
        for part in self._parts:
            part.env.close()
