# SPDX-License-Identifier: Apache-2.0
"""What a policy is to the parts that train it, checkpoint it and hand its weights on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from m2flow.registry import Plugin


class Policy(Plugin, ABC):
    """A model that acts. Making one loads nothing; the weights are read when they are first used."""

    version: int = 0
    """Number of optimizer updates that made the present weights; the learner counts it up."""

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that an optimizer may change, by name, always in the same order."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors of ``trainable``: all that training changes."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned.

        Raises:
            CheckpointError: names, shapes or types differ from this policy's.
        """

    @abstractmethod
    def save(self, path: Path, *, merged: bool = True) -> None:
        """Write the policy in a format that other software reads."""
