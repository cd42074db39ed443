# SPDX-License-Identifier: Apache-2.0
"""Several sources as one, each with its share."""

from typing import Any

import numpy as np
from pydantic import Field

from m2flow import config
from m2flow.data.interleaving import PartConfig, interleave
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source
from m2flow.registry import build


class Mixture(Source):
    """The parts' prompts, interleaved by weight.

    It is as long as it takes for every prompt to come once; prompts of parts that are short for their weight come
    several times. In the source's own order the parts alternate as evenly as they can.
    """

    class Config(config.Config):
        """What is mixed."""

        parts: tuple[PartConfig, ...] = Field(min_length=1)
        """The sources and their weights, as JSON: [{"source": "addition", "weight": 2}, ...]."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._parts: list[Source] = [build(part.source) for part in config.parts]
        weights = [part.weight for part in config.parts]
        self._places = interleave([len(part) for part in self._parts], weights)
        self.hashes = np.array([self._parts[i].hashes[j % len(self._parts[i])] for i, j in self._places], np.uint32)

    def __getitem__(self, index: int) -> Prompt:
        part, number = (int(n) for n in self._places[index])
        turn, row = divmod(number, len(self._parts[part]))
        prompt = self._parts[part][row]
        return Prompt(
            id=f"{part}/{prompt.id}" + (f"#{turn + 1}" if turn else ""),
            text=prompt.text,
            messages=prompt.messages,
            columns=prompt.columns,
        )
