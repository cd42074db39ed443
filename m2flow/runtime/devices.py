# SPDX-License-Identifier: Apache-2.0
"""What a machine has: GPUs and groups of CPU cores, each of which can be a slot."""

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from m2flow.config import Config
from m2flow.errors import ConfigError


class SlotConfig(Config):
    """One slot: a GPU with some cores beside it, or cores alone."""

    node: str = ""
    """Name of the machine, as Ray knows it."""
    kind: str
    """``cpu``, or the GPU's model name."""
    gpu: int | None = None
    """Number of the GPU on its machine."""
    cores: tuple[int, ...] = Field(min_length=1)
    """CPU cores of the slot's process."""
    memory_bytes: int = Field(ge=0)
    """Memory of the device; of cores, their share of the machine's."""
    numa_node: int = 0
    """The part of the machine's memory that its cores are near to."""

    def __str__(self) -> str:
        return f"{self.kind}, cores {_ranges(self.cores)}, {self.memory_bytes / 2**30:.1f} GiB"


def discover(num_slots: int | None = None, *, node: str = "") -> list[SlotConfig]:
    """This machine's slots: one for each GPU, or else ``num_slots`` equal groups of cores (one unless given).

    Only the cores that this process may run on count.

    Raises:
        ConfigError: more slots than GPUs or cores.
    """
    cores, gpus = sorted(os.sched_getaffinity(0)), _gpus()
    number = num_slots or len(gpus) or 1
    limit = len(gpus) or len(cores)
    if number > limit:
        what = "GPUs" if gpus else "CPU cores that this process may use"
        raise ConfigError(f"slots={number}: this machine has {limit} {what}; give at most that many")
    groups = split_cores(cores, number)
    if gpus:
        return [
            SlotConfig(node=node, kind=kind, gpu=i, cores=groups[i], memory_bytes=size, numa_node=_numa(groups[i][0]))
            for i, (kind, size) in enumerate(gpus[:number])
        ]
    share = _memory_bytes() // number
    return [SlotConfig(node=node, kind="cpu", cores=g, memory_bytes=share, numa_node=_numa(g[0])) for g in groups]


def split_cores(cores: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """``number`` groups of neighbouring cores, as equal as can be; cores of one NUMA node stay together where they
    fit."""
    ordered = sorted(cores, key=lambda core: (_numa(core), core))
    size, rest = divmod(len(ordered), number)
    ends = [(i + 1) * size + min(i + 1, rest) for i in range(number)]
    return [tuple(ordered[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def _gpus() -> list[tuple[str, int]]:
    """Model and memory of each visible GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [(device.name, device.total_memory) for device in found]


def _memory_bytes() -> int:
    """The machine's, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    return total if text == "max" else min(total, int(text))


def _numa(core: int) -> int:
    nodes = Path(f"/sys/devices/system/cpu/cpu{core}").glob("node*")
    return min((int(path.name.removeprefix("node")) for path in nodes), default=0)


def _ranges(cores: Sequence[int]) -> str:
    """``0-3, 6``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
