# SPDX-License-Identifier: Apache-2.0
"""The memory that workers and the process they step for share: actions in, observations and what is counted out.

The memory has no name: it is gone when the last process that holds it ends, however it ends.
"""

import math
import mmap
import os
from collections.abc import Iterable

import numpy as np

from m2flow.data.trajectories import Episode
from m2flow.spec import Interface

_EPISODE = np.dtype(
    [("seed", "i8"), ("total_reward", "f8"), ("num_ticks", "i8"), ("once", "i1"), ("at_end", "i1"), ("truncated", "?")]
)
_UNKNOWN = -1
_ALIGNMENT = 64
"""Bytes: no two arrays in one cache line."""


class Board:
    """Arrays of ``num_rows`` rows, each process writing those of its own.

    Args:
        file: descriptor of a memory file, which becomes as long as is needed.
    """

    def __init__(self, file: int, interface: Interface, *, num_rows: int) -> None:
        columns = [("actions", interface.action.shape, interface.action.dtype)]
        for spec in interface.observations:
            columns += [(f"seen/{spec.name}", spec.shape, spec.dtype), (f"final/{spec.name}", spec.shape, spec.dtype)]
        columns += [("rewards", (), "f4"), ("terminated", (), "?"), ("truncated", (), "?"), ("num_begun", (), "i8")]
        arrays = _arrays(file, [*columns, ("episodes", (), _EPISODE)], num_rows=num_rows)
        self.actions, self.num_begun = arrays["actions"], arrays["num_begun"]
        """[N, ...] to be made; [N] episodes that each row has begun."""
        self.seen = {spec.name: arrays[f"seen/{spec.name}"] for spec in interface.observations}
        """[N, ...] that the next actions answer."""
        self.final = {spec.name: arrays[f"final/{spec.name}"] for spec in interface.observations}
        """[N, ...] that a row's last episode ended with."""
        self.rewards, self.terminated, self.truncated = arrays["rewards"], arrays["terminated"], arrays["truncated"]
        self._episodes = arrays["episodes"]

    def write_episode(self, episode: Episode) -> None:
        """The last one of its row."""
        once, at_end = (
            _UNKNOWN if known is None else known for known in (episode.success_once, episode.success_at_end)
        )
        counted = (episode.seed, episode.total_reward, episode.num_ticks, once, at_end, episode.truncated)
        self._episodes[episode.row] = counted

    def episodes(self, rows: Iterable[int]) -> list[Episode]:
        """The last one of each of ``rows``."""
        return [_episode(row, self._episodes[row]) for row in rows]


def _episode(row: int, counted: np.void) -> Episode:
    seed, total_reward, num_ticks, once, at_end, truncated = counted.item()
    return Episode(
        row=row,
        seed=seed,
        total_reward=total_reward,
        num_ticks=num_ticks,
        success_once=None if once == _UNKNOWN else bool(once),
        success_at_end=None if at_end == _UNKNOWN else bool(at_end),
        truncated=bool(truncated),
    )


def _arrays(
    file: int, columns: list[tuple[str, tuple[int, ...], str | np.dtype]], *, num_rows: int
) -> dict[str, np.ndarray]:
    ends, dtypes = [0], [np.dtype(dtype) for _, _, dtype in columns]
    for (_, shape, _), dtype in zip(columns, dtypes, strict=True):
        size = num_rows * math.prod(shape) * dtype.itemsize
        ends.append(-(-(ends[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    os.ftruncate(file, ends[-1])
    memory = mmap.mmap(file, ends[-1])
    return {
        name: np.ndarray((num_rows, *shape), dtype, memory, offset)
        for (name, shape, _), dtype, offset in zip(columns, dtypes, ends, strict=False)
    }
