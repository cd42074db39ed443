# SPDX-License-Identifier: Apache-2.0
"""A memory of the last ticks that were seen, from which learners draw."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from m2flow.errors import CheckpointError, DataError

_RECORD = "total.json"


class Replay:
    """The last ``capacity`` items, each a set of named arrays.

    Args:
        capacity: how many items can be drawn.
        folder: where they are kept; left out, in main memory, and then checkpoints hold them.

    In a folder a quarter as many are kept besides, so that a run can go on from a checkpoint after which other items
    came.

    Raises:
        DataError: the folder holds another memory.
    """

    def __init__(self, capacity: int, *, folder: Path | None = None) -> None:
        self.capacity, self.folder = capacity, folder
        self.num_slots = capacity if folder is None else capacity + max(capacity // 4, 1)
        self.total = 0
        """How many items ever came."""
        self._arrays: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return min(self.total, self.capacity)

    def add(self, items: Mapping[str, np.ndarray]) -> None:
        """[n, ...] arrays, always by the same names and with the same shapes and types."""
        num = len(next(iter(items.values())))
        if not self._arrays:
            self._arrays = {name: self._made(name, array[:1]) for name, array in items.items()}
        self._record(self.total + num)
        slots = np.arange(self.total, self.total + num)[-self.num_slots :] % self.num_slots
        for name, array in items.items():
            self._arrays[name][slots] = array[-self.num_slots :]
        self.total += num

    def draw(self, rng: np.random.Generator, num: int) -> dict[str, np.ndarray]:
        """[num, ...] items, each as likely as any other, with repetition.

        Raises:
            DataError: there are none.
        """
        if not self.total:
            raise DataError("nothing can be drawn of an empty memory: add items first")
        slots = rng.integers(self.total - len(self), self.total, num) % self.num_slots
        return {name: array[slots] for name, array in self._arrays.items()}

    def state(self) -> dict[str, Any]:
        """All items, or where there is a folder how many there were."""
        if self.folder is not None:
            return {"total": self.total, "arrays": None}
        return {"total": self.total, "arrays": {k: array[: len(self)] for k, array in self._arrays.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it belongs to a memory of another capacity or place, or the folder has gone on too far.
        """
        total, arrays = int(state["total"]), state["arrays"]
        if (arrays is None) != (self.folder is not None):
            raise CheckpointError("the checkpoint's memory was in another place: resume with the run's own `folder`")
        if arrays is None:
            self._reopen(total)
        elif arrays and len(next(iter(arrays.values()))) != min(total, self.capacity):
            raise CheckpointError(f"the checkpoint's memory had not capacity={self.capacity}: resume with its own")
        else:
            self._arrays = {name: self._made(name, array[:1]) for name, array in arrays.items()}
            for name, array in arrays.items():
                self._arrays[name][: len(array)] = array
        self.total = total

    def _record(self, total: int) -> None:
        """Before the items are written: what is there is never further on than it says."""
        if self.folder is not None:
            path = self.folder / _RECORD
            path.with_suffix(".new").write_text(json.dumps(total), encoding="utf-8")
            path.with_suffix(".new").replace(path)

    def _made(self, name: str, like: np.ndarray) -> np.ndarray:
        shape = (self.num_slots, *like.shape[1:])
        if self.folder is None:
            # Pages that were never written take no memory.
            return np.empty(shape, like.dtype)
        path = self.folder / f"{name.replace('/', '.')}.npy"
        if path.exists():
            raise DataError(f"{self.folder} holds a memory already: resume its run, or give another folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        return np.lib.format.open_memmap(path, mode="w+", dtype=like.dtype, shape=shape)

    def _reopen(self, total: int) -> None:
        assert self.folder is not None
        if not total:
            # Nothing had come: what has come since is not deleted for anyone, and the first item says that it is there.
            return
        files = sorted(self.folder.glob("*.npy"))
        try:
            seen = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"the memory in {self.folder} is gone or damaged: {error}") from error
        self._arrays = {file.stem.replace(".", "/"): np.lib.format.open_memmap(file, mode="r+") for file in files}
        wrong = [name for name, array in self._arrays.items() if len(array) != self.num_slots]
        spare = self.num_slots - self.capacity
        if wrong or not files or not total <= seen <= total + spare:
            raise CheckpointError(
                f"the memory in {self.folder} had {total} items at the checkpoint and has {seen} now, at most {spare} "
                f"more can be gone back by, with the run's own capacity (now {self.capacity}): write checkpoints more "
                "often, or let the capacity be larger"
            )
