# SPDX-License-Identifier: Apache-2.0
"""Prompts to train or to evaluate on: one endless, shuffled, resumable reader over any source."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field

from m2flow.config import Config
from m2flow.data.samples import Prompt
from m2flow.data.shuffle import permutation
from m2flow.errors import CheckpointError, DataError
from m2flow.registry import SourceConfig, build


class PromptsConfig(Config):
    """Which prompts, and in which order."""

    headline = "source"

    source: SourceConfig = "addition"
    """Where they come from."""
    split: Literal["train", "held_out", "all"] = "train"
    """held_out: a fixed part that train leaves out, chosen by a hash of what is asked; all: no such cut."""
    held_out_fraction: float = Field(default=0.1, gt=0, le=0.5)
    """Size of the held-out part; it must be the same for both parts, lest they overlap."""
    max_characters: int | None = Field(default=None, ge=1)
    """Leave out prompts whose text, or whose messages together, are longer."""
    max_prompts: int | None = Field(default=None, ge=1)
    """Only the first so many of the split, in the source's order."""
    shuffle: bool = True
    """A new order in each epoch; otherwise always the source's."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Other seeds, other orders."""


class Prompts:
    """Endless prompts in an order that only depends on the seed; ``take`` goes on where it stopped.

    Opening it looks at every row once.

    Raises:
        DataError: there is no prompt, a column is missing, or a row cannot be used.
    """

    Config = PromptsConfig

    def __init__(self, config: PromptsConfig | None = None) -> None:
        self.config = config or PromptsConfig()
        self.source = build(self.config.source)
        self._rows = self._split()
        self.epoch = 0
        """How often every prompt has been taken."""
        self.position = 0
        """How many prompts of this epoch have been taken."""
        self._order: tuple[int, np.ndarray] | None = None

    def _split(self) -> np.ndarray:
        rows = np.arange(len(self.source))
        if self.config.split != "all":
            held_out = self.source.hashes < 2**32 * self.config.held_out_fraction
            rows = rows[held_out == (self.config.split == "held_out")]
        if not len(rows):
            raise DataError(
                f"no prompt is in the part '{self.config.split}' of {len(self.source)} prompts "
                f"(held_out_fraction {self.config.held_out_fraction}): choose split='all' or another fraction"
            )
        if (longest := self.config.max_characters) is not None:
            rows = self._only(rows, lambda prompt: _characters(prompt) <= longest)
        return rows[: self.config.max_prompts]

    def _only(self, rows: np.ndarray, keep: Callable[[Prompt], bool]) -> np.ndarray:
        kept = [keep(self.source[int(row)]) for row in rows]
        if not any(kept):
            raise DataError(f"none of {len(rows)} prompts is kept: let the filter (max_characters, say) keep some")
        return rows[kept]

    def filter(self, keep: Callable[[Prompt], bool]) -> Self:
        """Leave out the prompts for which ``keep`` is false, and begin anew; returns the reader itself.

        ``prompts.filter(lambda prompt: len(policy.encode(prompt)) <= 200)`` leaves out what is longer in tokens.

        Raises:
            DataError: it keeps none.
        """
        self._rows = self._only(self._rows, keep)
        self.epoch, self.position, self._order = 0, 0, None
        vars(self).pop("fingerprint", None)
        return self

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self._rows)

    def take(self, num_prompts: int) -> list[Prompt]:
        """The next prompts; the next epoch begins where one ends.

        A prompt that comes twice in one call has its second id marked with its epoch (``id@3``), so that the ids of
        what is sampled together differ.
        """
        if num_prompts < 0:
            raise DataError(f"cannot take {num_prompts} prompts: expected 0 or more")
        taken: dict[str, Prompt] = {}
        while len(taken) < num_prompts:
            epoch, prompt = self._next()
            unique = prompt.id if prompt.id not in taken else f"{prompt.id}@{epoch}"
            taken[unique] = replace(prompt, id=unique)
        return list(taken.values())

    def _next(self) -> tuple[int, Prompt]:
        epoch, prompt = self.epoch, self.source[int(self._rows[self._place()])]
        self.position += 1
        if self.position == len(self):
            self.epoch, self.position = self.epoch + 1, 0
        return epoch, prompt

    def _place(self) -> int:
        if not self.config.shuffle:
            return self.position
        if self._order is None or self._order[0] != self.epoch:
            self._order = (self.epoch, permutation(len(self), seed=self.config.seed, epoch=self.epoch))
        return int(self._order[1][self.position])

    @cached_property
    def fingerprint(self) -> str:
        """Differs where what is asked does, or its order."""
        order = f"{self.source.name} {self.config.shuffle} {self.config.seed} ".encode()
        return sha256(order + self._rows.tobytes() + self.source.hashes[self._rows].tobytes()).hexdigest()

    def state(self) -> dict[str, Any]:
        """The position, and which data set it is in."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "num_prompts": len(self),
            "fingerprint": self.fingerprint,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position that ``state`` gave.

        Raises:
            CheckpointError: it belongs to another data set, or to another order.
        """
        if state["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                f"the saved position is in a data set of {state['num_prompts']} prompts, and this one of {len(self)} "
                "has other prompts or another order: give the data, split and seed that the run was started with"
            )
        self.epoch, self.position = int(state["epoch"]), int(state["position"])


def _characters(prompt: Prompt) -> int:
    return len(prompt.text or "") + sum(len(message["content"]) for message in prompt.messages or ())


class MathPrompts(Prompts):
    """Prompts with a gold answer, which rewards get as ``answer``.

    Raises:
        DataError: the source has no answers.
    """

    def __init__(self, config: PromptsConfig | None = None) -> None:
        super().__init__(config)
        first = self.source[int(self._rows[0])]
        if "answer" not in first.columns:
            raise DataError("these prompts have no gold answers: set the source's answer_column, or use Prompts")
