# SPDX-License-Identifier: Apache-2.0
"""When a response ends, and what its text is then."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from m2flow.engines.base import SamplingConfig

SLACK = 4
"""Tokens looked at beyond a stop string's own: the first of a tail may be part of a character, or lose its space."""


class Stopping:
    """Stop tokens of the policy and stop strings of the request."""

    def __init__(self, policy: Any, sampling: SamplingConfig) -> None:
        self.policy = policy
        self.strings = sampling.stop
        self.token_ids = np.array(policy.stop_token_ids, dtype=np.int64)
        # Every token stands for at least one byte, special ones aside, so that this many end with the whole string.
        self._tail = SLACK + max((len(string.encode()) for string in self.strings), default=0)

    def ended(self, tokens: Int[np.ndarray, "rows T"]) -> Bool[np.ndarray, "rows"]:
        """Which responses end with their last token (they did not before it)."""
        ended = np.isin(tokens[:, -1], self.token_ids)
        if self.strings:
            ended |= np.array([self._has_string(row[-self._tail :]) for row in tokens], dtype=bool)
        return ended

    def _has_string(self, tail: Int[np.ndarray, "n"]) -> bool:
        text = self.policy.decode(tail)
        return any(string in text for string in self.strings)

    def text(self, tokens: Int[np.ndarray, "T"]) -> str:
        """The response without its stop token, and up to the first stop string."""
        text = self.policy.decode(tokens[:-1] if tokens[-1] in self.token_ids else tokens)
        cuts = [text.find(string) for string in self.strings if string in text]
        return text[: min(cuts)] if cuts else text
