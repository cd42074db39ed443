# SPDX-License-Identifier: Apache-2.0
"""Problems that reasoning-gym generates; nothing is downloaded."""

import importlib
from typing import Any

import numpy as np
from pydantic import Field

from m2flow import config
from m2flow.config import nearest
from m2flow.data.rows import prompt_hash
from m2flow.data.samples import Prompt
from m2flow.data.sources.base import Source, missing_package
from m2flow.errors import DataError


class ReasoningGym(Source):
    """One of its tasks. Rewards get ``answer`` (which may be null) and ``entry``, the whole problem.

    A task judges answers itself, often more kindly than equality does: ``reasoning_gym.get_score_answer_fn(task)``
    takes an answer and the entry.
    """

    class Config(config.Config):
        """Which task, and how many problems of it."""

        headline = "task"

        task: str
        """Its name: chain_sum, countdown, knights_knaves, ..."""
        size: int = Field(default=1000, ge=1)
        """How many problems are generated."""
        seed: int = Field(default=0, ge=0)
        """Other seeds, other problems."""
        options: dict[str, Any] = Field(default_factory=dict)
        """The task's own options, as JSON: {"min_terms": 2, "max_terms": 3}."""
        chat: bool = False
        """Ask in a chat message instead of raw text."""
        system_prompt: str | None = None
        """First message of the chat."""

        def problems(self) -> list[str]:
            """The package is missing, or a system prompt has no chat."""
            chatless = self.system_prompt is not None and not self.chat
            needs_chat = ["system_prompt is for a chat: set chat to true, or leave it out"] if chatless else []
            return [*_missing(), *needs_chat]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for problem in config.problems():
            raise DataError(problem)
        self._entries = list(_generate(config))
        self.hashes = np.array([prompt_hash(self[i]) for i in range(len(self._entries))], dtype=np.uint32)

    def __getitem__(self, index: int) -> Prompt:
        entry = self._entries[index]
        columns = {"answer": entry["answer"], "task": self.config.task, "entry": entry}
        prompt_id = f"{self.config.task}/{self.config.seed}/{index}"
        if not self.config.chat:
            return Prompt(id=prompt_id, text=entry["question"], columns=columns)
        system = self.config.system_prompt
        messages = [{"role": "system", "content": system}] if system is not None else []
        return Prompt(
            id=prompt_id, messages=(*messages, {"role": "user", "content": entry["question"]}), columns=columns
        )


def _generate(config: Any) -> Any:
    gym = importlib.import_module("reasoning_gym")
    known = sorted(importlib.import_module("reasoning_gym.factory").DATASETS)
    if config.task not in known:
        raise DataError(f"reasoning-gym has no task '{config.task}': {nearest(config.task, known)}")
    try:
        return gym.create_dataset(config.task, size=config.size, seed=config.seed, **config.options)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"reasoning-gym refuses the options of {config.task}, {config.options}: {error}") from error


def _missing() -> list[str]:
    return missing_package("reasoning_gym", reads="generated tasks", extra="reasoning")
