# SPDX-License-Identifier: Apache-2.0
"""Configuration of the parts of a language-model policy."""

from pathlib import Path

from pydantic import Field, field_validator

from m2flow.config import Config


class LoraConfig(Config):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): the base model stays, small matrices are trained."""

    rank: int = Field(16, gt=0)
    """Inner dimension of each adapter."""
    alpha: int = Field(32, gt=0)
    """An adapter's output is multiplied by ``alpha / rank``."""
    targets: tuple[str, ...] = Field(("all-linear",), min_length=1)
    """Names of the linear layers that get an adapter; ``all-linear`` means every one but the output projection."""
    dropout: float = 0.0
    """Always 0: with dropout the learner's log-probs would differ from those of the rollout that it must agree with."""
    seed: int = Field(0, ge=0)
    """Seed of the adapters' first weights."""

    @field_validator("dropout")
    @classmethod
    def _no_dropout(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                f"got {dropout}, expected 0: dropout makes the learner's log-probs differ from the rollout's; "
                "to regularise, lower 'rank' or the learning rate, or add a KL term"
            )
        return dropout


class ChatConfig(Config):
    """How the messages of a chat become text. Prompts of raw text do not pass through here."""

    system: str | None = None
    """Put before the messages of every prompt that has no system message of its own."""
    template: Path | None = None
    """A file with a Jinja chat template; none takes the tokenizer's."""
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Variables given to the template, such as ``enable_thinking``; an error if it does not read them."""

    def problems(self) -> list[str]:
        """A template file that is missing."""
        if self.template is None or self.template.is_file():
            return []
        return [f"no file {self.template} for 'template': give the path of a Jinja chat template"]
