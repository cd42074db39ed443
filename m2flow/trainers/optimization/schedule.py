# SPDX-License-Identifier: Apache-2.0
"""The learning rate as a function of the optimizer step."""

import math
from typing import Literal

from pydantic import Field, model_validator

from m2flow.config import Config
from m2flow.errors import LearnerError


class ScheduleConfig(Config):
    """The learning rate goes up in ``warmup_steps``, then by ``shape`` to ``final_fraction`` at ``total_steps``."""

    shape: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear growth; step n of them runs at n/warmup_steps of the rate."""
    total_steps: int | None = Field(default=None, gt=0)
    """Optimizer steps after which linear and cosine stay at their end; left out, those of the whole run."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Where linear and cosine end, as a fraction of the learning rate."""

    @model_validator(mode="after")
    def _has_an_end(self) -> "ScheduleConfig":
        if self.shape == "constant" and (self.total_steps is not None or self.final_fraction):
            raise ValueError(
                "a constant schedule has no total_steps or final_fraction: choose linear or cosine, or drop them"
            )
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ValueError(f"total_steps={self.total_steps} must be more than warmup_steps={self.warmup_steps}")
        return self

    def factor(self, step: int, run_steps: int | None = None) -> float:
        """What the learning rate is multiplied by in optimizer step ``step``, from 0, of a run that has ``run_steps``.

        Raises:
            LearnerError: the schedule needs an end, and neither ``total_steps`` nor ``run_steps`` gives one.
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        total = self.total_steps or run_steps
        if total is None:
            raise LearnerError(f"a {self.shape} schedule needs total_steps where the learner is used without a run")
        done = min((step - self.warmup_steps) / max(total - self.warmup_steps, 1), 1.0)
        left = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final_fraction + (1 - self.final_fraction) * left
