# SPDX-License-Identifier: Apache-2.0
"""A role on several ranks in a checkpoint: each rank adds its own part, and any number of ranks finds theirs again."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from m2flow.checkpoint import record, rng
from m2flow.trainers.sharding import shards


def save(role: Any, folder: Path, *, name: str, rank: int) -> record.Part:
    """Add this rank's state of ``role``, called ``name``, and its process's random generators to a checkpoint.

    Args:
        folder: what ``Store.begin`` returned; ``Store.finish`` wants the parts of all ranks.
    """
    state = {"name": name, "rank": rank, "state": role.state(), "rng": rng.capture()}
    return record.write_part(folder, f"{name}-{rank:05d}", state=state)


def load(
    role: Any, parts: Iterable[tuple[str, Mapping[str, Any]]], *, name: str, rank: int = 0, num_ranks: int = 1
) -> None:
    """Give ``role`` its part of what any number of ranks saved under ``name``.

    The random generators go on with those of the same rank; a rank that there was not keeps its own.

    Args:
        parts: what ``Store.parts`` returned; one part at a time is in memory.

    Raises:
        CheckpointError: parts are missing, or are another role's.
    """
    generators: dict[int, Any] = {}

    def own() -> Iterable[Mapping[str, Any]]:
        for _, part in parts:
            if part["name"] == name:
                generators[part["rank"]] = part["rng"]
                yield part["state"]

    role.load_state(shards.assemble(own(), rank, num_ranks=num_ranks))
    if rank in generators:
        rng.restore(generators[rank])
