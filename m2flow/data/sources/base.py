# SPDX-License-Identifier: Apache-2.0
"""What a source of prompts is: a fixed sequence of them, read by number."""

import importlib.util
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from jaxtyping import UInt32

from m2flow.data.samples import Prompt
from m2flow.registry import Plugin


class Source(Plugin, ABC):
    """A data set, opened: every row has been looked at once, so that ``source[i]`` does not fail later.

    Raises:
        DataError: on construction: nothing there, a column is missing, or a row cannot be used.
    """

    hashes: UInt32[np.ndarray, "n"]
    """A hash of what each prompt asks, spread over 32 bits. It decides which side of a split the prompt is on, so equal
    prompts are on the same side."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.hashes)

    @abstractmethod
    def __getitem__(self, index: int) -> Prompt:
        """Prompt ``index``, from 0; the same one whenever asked."""


def missing_package(package: str, *, reads: str, extra: str) -> list[str]:
    """What to install, where ``package`` is not there: a problem for ``Config.problems``, or none."""
    if importlib.util.find_spec(package) is None:
        return [f"{reads} need the package {package.replace('_', '-')}: pip install 'm2flow[{extra}]'"]
    return []
