# SPDX-License-Identifier: Apache-2.0
"""Built-in addition problems; nothing is downloaded."""

from typing import Any

import numpy as np
from pydantic import Field

from m2flow import config
from m2flow.data.arithmetic import question, spread, terms
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source
from m2flow.errors import DataError


class Addition(Source):
    """``12+34=``, as raw text or as a chat, with worked examples before it if wanted."""

    class Config(config.Config):
        """Which problems, and how they are put."""

        digits: int = Field(default=2, ge=1, le=3)
        """Digits of each term, at most."""
        full_width: bool = False
        """Only terms with exactly that many digits."""
        spaced: bool = False
        """``12 + 34 = `` instead of ``12+34=``, as models are used to that were trained on prose."""
        shots: int = Field(default=0, ge=0, le=64)
        """Worked examples before the problem: the same ones for all, and never asked themselves."""
        chat: bool = False
        """Ask in a chat message instead of raw text."""
        system_prompt: str | None = None
        """First message of the chat."""

        def problems(self) -> list[str]:
            """A system prompt needs a chat."""
            needs_chat = self.system_prompt is not None and not self.chat
            return ["system_prompt is for a chat: set chat to true, or leave it out"] if needs_chat else []

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for problem in config.problems():
            raise DataError(problem)
        pairs = terms(digits=config.digits, full_width=config.full_width)
        hashes = spread(pairs, digits=config.digits)
        # The highest hashes are the farthest from what any split holds out.
        shown = np.argsort(hashes, kind="stable")[len(hashes) - config.shots :]
        self._prefix = "".join(f"{question(a, b, spaced=config.spaced)}{a + b}\n" for a, b in pairs[shown])
        self._pairs = np.delete(pairs, shown, axis=0)
        self.hashes = np.delete(hashes, shown)

    def __getitem__(self, index: int) -> Prompt:
        a, b = (int(term) for term in self._pairs[index])
        text, columns = self._prefix + question(a, b, spaced=self.config.spaced), {"answer": str(a + b)}
        prompt_id = f"addition/{a}+{b}"
        if not self.config.chat:
            return Prompt(id=prompt_id, text=text, columns=columns)
        system = self.config.system_prompt
        messages = [{"role": "system", "content": system}] if system is not None else []
        return Prompt(id=prompt_id, messages=(*messages, {"role": "user", "content": text}), columns=columns)
