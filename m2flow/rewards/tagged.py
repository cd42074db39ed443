# SPDX-License-Identifier: Apache-2.0
"""1 where a completion consists of the wanted tagged parts, each once and in order, else 0."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from m2flow.config import Config
from m2flow.rewards.base import Response, RewardFunction, Verdict

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Tagged(RewardFunction):
    """``<think> ... </think> <answer> ... </answer>``, with nothing but white space around and between the parts."""

    class Config(Config):
        """Options of ``tagged``."""

        tags: tuple[str, ...] = Field(default=("think", "answer"), min_length=1)
        """Names of the parts, in order."""
        opened: bool = False
        """The prompt ends with the first opening tag already, so that completions begin behind it."""

        def problems(self) -> list[str]:
            """Names that could not be told apart, or are none."""
            found = [
                f"'{tag}' is no tag name: letters, digits, - and _" for tag in self.tags if not _NAME.fullmatch(tag)
            ]
            return found + (["a tag is named twice"] if len(set(self.tags)) < len(self.tags) else [])

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        config.check()
        self._marks = [f"<{slash}{tag}>" for tag in config.tags for slash in ("", "/")][config.opened :]
        self._any_mark = re.compile("|".join(map(re.escape, (f"<{s}{tag}>" for tag in config.tags for s in ("", "/")))))

    def score(self, responses: Sequence[Response]) -> list[Verdict]:
        """1 or 0 for each response, by its form alone."""
        return [Verdict(float(self._is_formed(response.completion))) for response in responses]

    def _is_formed(self, text: str) -> bool:
        pieces = self._any_mark.split(text)
        if self._any_mark.findall(text) != self._marks:
            return False
        # Pieces lie before the first mark, then inside and outside of parts in turn.
        inside = pieces[0::2] if self.config.opened else pieces[1::2]
        outside = pieces[1::2] if self.config.opened else pieces[0::2]
        return all(piece.strip() for piece in inside) and not any(piece.strip() for piece in outside)
