# SPDX-License-Identifier: Apache-2.0
"""Actions to an environment and ticks from it, all parts in flight at once."""

from collections.abc import Callable, Generator, Iterator

import numpy as np

from m2flow.envs.stepping.base import Stepper, Tick

Act = Callable[[int, int], np.ndarray]
"""From the number of a tick and a part to actions for what the part sees now, as the environment takes them."""


def drive(stepper: Stepper, act: Act, *, num_ticks: int) -> Generator[tuple[int, int, Tick]]:
    """(number, part, tick) of ``num_ticks`` ticks of each part, tick by tick.

    While one part is answered the others are stepped. Closed before its end, it waits for what is in flight.
    """
    flight = _Flight(stepper, act)
    try:
        yield from flight.ticks(num_ticks)
    finally:
        flight.land()


class _Flight:
    def __init__(self, stepper: Stepper, act: Act) -> None:
        self.stepper, self.act = stepper, act
        self.parts: set[int] = set()
        """Those in flight."""

    def ticks(self, num_ticks: int) -> Iterator[tuple[int, int, Tick]]:
        for part in range(self.stepper.num_parts):
            self.send(0, part)
        for number in range(num_ticks):
            for part in range(self.stepper.num_parts):
                self.parts.remove(part)
                yield number, part, self.stepper.receive(part)
                if number + 1 < num_ticks:
                    self.send(number + 1, part)

    def send(self, number: int, part: int) -> None:
        self.stepper.send(part, self.act(number, part))
        self.parts.add(part)

    def land(self) -> None:
        for part in self.parts:
            self.stepper.receive(part)
