# SPDX-License-Identifier: Apache-2.0
"""All rows in this process, one part after another: a breakpoint in a simulator stops here, and so does its error."""

from collections.abc import Callable
from typing import Any

import numpy as np

from m2flow.envs.base import Env, Observations
from m2flow.envs.stepping.base import Stepper, Tick
from m2flow.envs.stepping.episodes import Rows
from m2flow.errors import CheckpointError, SimulatorError
from m2flow.spec import Spec


class SerialStepper(Stepper):
    """``num_rows`` rows in ``num_parts`` parts, each a simulator of its own.

    Args:
        make: from a number of rows to the simulator that holds them.
        group_size: of so many rows, one after another, equal numbers of episodes begin in equal states.

    Raises:
        SimulatorError: rows that cannot be cut into such parts, or more of them than the simulator can hold.
    """

    def __init__(self, make: Callable[[int], Env], *, num_rows: int, num_parts: int = 1, group_size: int = 1) -> None:
        if not 1 <= num_parts <= num_rows or num_rows % num_parts:
            raise SimulatorError(f"{num_rows} rows cannot be cut into {num_parts} equal parts: choose a divisor")
        if not 1 <= group_size <= num_rows or num_rows % group_size:
            raise SimulatorError(f"{num_rows} rows cannot be cut into groups of {group_size}: choose a divisor")
        self.num_rows, self.num_parts, self.group_size = num_rows, num_parts, group_size
        self.seed = 0
        self.observations, self.num_ticks = [], [0] * num_parts
        size = num_rows // num_parts
        self._parts: list[Rows] = []
        for begin in range(0, num_rows, size):
            env = make(size)
            self._parts.append(Rows(env, range(begin, begin + size), group_size=group_size))
            if env.max_rows is not None and num_rows > env.max_rows:
                self.close()
                raise SimulatorError(
                    f"{env.name} holds at most {env.max_rows} rows in one process, {num_rows} were asked for: let "
                    "workers step them"
                )
        self.interface = self._parts[0].env.interface
        self._sent: list[np.ndarray | None] = [None] * num_parts

    def reset(self, seed: int) -> list[Observations]:
        """See ``Stepper.reset``."""
        self._sent, self.seed, self.num_ticks = [None] * self.num_parts, seed, [0] * self.num_parts
        self.observations = [part.reset(seed) for part in self._parts]
        return self.observations

    def send(self, part: int, actions: np.ndarray) -> None:
        """See ``Stepper.send``; the tick is made by ``receive``."""
        if self._sent[part] is not None:
            raise SimulatorError(f"part {part} is in flight already: receive its tick before the next is sent")
        self._sent[part] = checked(actions, self.interface.action, num_rows=self.num_rows // self.num_parts)

    def receive(self, part: int) -> Tick:
        """See ``Stepper.receive``."""
        actions = self._sent[part]
        if actions is None:
            raise SimulatorError(f"nothing was sent to part {part}: send actions before its tick is received")
        self._sent[part] = None
        tick = self._parts[part].tick(actions)
        self.observations[part] = tick.observations
        self.num_ticks[part] += 1
        return tick

    def render(self, row: int) -> np.ndarray:
        """See ``Stepper.render``."""
        part, place = divmod(row, self.num_rows // self.num_parts)
        return self._parts[part].env.render(place)

    def state(self) -> dict[str, Any]:
        """See ``Stepper.state``."""
        if flying := [part for part, sent in enumerate(self._sent) if sent is not None]:
            raise SimulatorError(f"parts {flying} are in flight: receive their ticks before the state is taken")
        return {
            "env": self._parts[0].env.name,
            "seed": self.seed,
            "num_ticks": list(self.num_ticks),
            "parts": [part.state() for part in self._parts],
        }

    def load_state(self, state: dict[str, Any]) -> list[Observations]:
        """See ``Stepper.load_state``."""
        own = {"env": self._parts[0].env.name, "parts": self.num_parts}
        saved = {"env": state["env"], "parts": len(state["parts"])}
        if own != saved:
            raise CheckpointError(
                f"the checkpoint is of environment '{saved['env']}' in {saved['parts']} parts, here is '{own['env']}' "
                f"in {own['parts']}: resume with those it had"
            )
        self._sent, self.seed = [None] * self.num_parts, int(state["seed"])
        self.num_ticks = [int(num) for num in state["num_ticks"]]
        self.observations = [part.load_state(saved) for part, saved in zip(self._parts, state["parts"], strict=True)]
        return self.observations

    def close(self) -> None:
        """See ``Stepper.close``."""
        for part in self._parts:
            part.env.close()


def checked(actions: np.ndarray, spec: Spec, *, num_rows: int) -> np.ndarray:
    """``actions`` in the type that ``spec`` says.

    Raises:
        SimulatorError: another shape than [num_rows, ...], or entries that are not finite or out of its limits.
    """
    wanted, given = (num_rows, *spec.shape), np.asarray(actions)
    if given.shape != wanted:
        raise SimulatorError(f"actions have the shape {given.shape}, '{spec.name}' of {num_rows} rows has {wanted}")
    if np.dtype(spec.dtype).kind in "iu" and given.dtype.kind not in "iu":
        raise SimulatorError(f"actions are {given.dtype}, '{spec.name}' takes whole numbers ({spec.dtype})")
    inside = (given >= spec.low) & (given <= spec.high)
    if not inside.all():
        # Comparisons with NaN are false, so that it is found here too.
        row = int(np.argwhere(~inside)[0][0])
        raise SimulatorError(
            f"the action {given[row].tolist()} of row {row} is not within the limits {spec.low} to {spec.high} of "
            f"'{spec.name}': clip or squash what the policy draws"
        )
    return given.astype(spec.dtype, copy=False)
