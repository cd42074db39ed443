# SPDX-License-Identifier: Apache-2.0
"""A plan: what runs where, and in which chunks.

Names such as collocated or disaggregated are for people; no code branches on them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from m2flow.config import Config
from m2flow.errors import ConfigError
from m2flow.runtime.devices import SlotConfig


class StageConfig(Config):
    """Where a role runs, and how its results travel."""

    headline = "slots"

    slots: tuple[int, ...] = ()
    """Numbers of its slots; left out, all that it can use."""
    chunk: int = Field(default=64, ge=1)
    """How many items of its results a consumer takes at a time, at most."""
    bound: int = Field(default=0, ge=0)
    """How many of its results may wait for a consumer before it pauses; 0: any number."""


class Plan(Config):
    """Slots, and for each role where it runs."""

    slots: tuple[SlotConfig, ...]
    """The devices, by number."""
    stages: dict[str, StageConfig]
    """The roles, by name."""

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read what ``save`` wrote.

        Raises:
            ConfigError: the file holds no plan.
        """
        return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))

    def shape(self) -> str:
        """What people call such a plan."""
        placed = [frozenset(stage.slots) for stage in self.stages.values()]
        if len(set(placed)) <= 1:
            return "collocated"
        is_apart = all(a == b or not a & b for a in placed for b in placed)
        return "disaggregated" if is_apart else "hybrid"

    def __str__(self) -> str:
        width = max(map(len, self.stages), default=0)
        lines = [f"{self.shape()} on {len(self.slots)} slot{'s' * (len(self.slots) != 1)}"]
        lines += [f"  slot {number}: {slot}" for number, slot in enumerate(self.slots)]
        for name, stage in self.stages.items():
            where = ", ".join(map(str, stage.slots))
            lines.append(f"  {name:<{width}} on {where}; chunks of {stage.chunk}, bound {stage.bound or 'none'}")
        return "\n".join(lines)


def pins(texts: Sequence[str]) -> dict[str, StageConfig]:
    """What is set by hand, by role, from ``rollout=0,1`` and ``rollout.chunk=4``.

    Raises:
        ConfigError: lists everything that cannot be read so.
    """
    if wrong := problems(texts):
        raise ConfigError("\n".join(wrong))
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        role, _, option = key.partition(".")
        numbers = tuple(map(int, value.split(",")))
        found.setdefault(role, {})[option or "slots"] = numbers[0] if option else numbers
    return {role: StageConfig(**options) for role, options in found.items()}


def problems(texts: Sequence[str]) -> list[str]:
    """What cannot be read as a pin."""
    names = "|".join(name for name in StageConfig.model_fields if name != "slots")
    pattern = re.compile(rf"[^=.]+(=\d+(,\d+)*|\.({names})=\d+)")
    return [
        f"got '{text}' as a pin, expected role=slots or role.option=number, as in rollout=0,1 or rollout.chunk=4"
        for text in texts
        if not pattern.fullmatch(text)
    ]


def make(slots: Sequence[SlotConfig], max_slots: Mapping[str, int | None], *, pins: Mapping[str, StageConfig]) -> Plan:
    """Every role on all slots that it can use, but where ``pins`` say otherwise.

    Args:
        slots: the devices.
        max_slots: for each role how many slots it can use; ``None``: any number.
        pins: what is set by hand, by role.

    Raises:
        ConfigError: lists every pin that is not possible, and what would be.
    """
    wrong = [text for name, pin in pins.items() for text in _problems(name, pin, max_slots=max_slots, num=len(slots))]
    if wrong:
        raise ConfigError("this plan is not possible:\n" + "\n".join(f"  {text}" for text in wrong))
    stages = {}
    for name, limit in max_slots.items():
        pin = pins.get(name, StageConfig())
        everywhere = tuple(range(len(slots)))[:limit]
        stages[name] = StageConfig(slots=pin.slots or everywhere, chunk=pin.chunk, bound=pin.bound)
    return Plan(slots=tuple(slots), stages=stages)


def _problems(name: str, pin: StageConfig, *, max_slots: Mapping[str, int | None], num: int) -> list[str]:
    if name not in max_slots:
        return [f"pin.{name}: there is no role '{name}'; the roles are {', '.join(max_slots)}"]
    found = []
    if missing := [slot for slot in pin.slots if not 0 <= slot < num]:
        found.append(f"pin.{name}: there is no slot {missing[0]}; the slots are 0 to {num - 1}")
    if len(set(pin.slots)) < len(pin.slots):
        found.append(f"pin.{name}: {pin.slots} names a slot twice")
    limit = max_slots[name]
    if limit is not None and len(pin.slots) > limit:
        found.append(f"pin.{name}: {len(pin.slots)} slots, and it can use {limit}; pin it to one of 0 to {num - 1}")
    return found
