# SPDX-License-Identifier: Apache-2.0
"""The state of a role in a checkpoint: its own where one slot has it, else that of each slot."""

from collections.abc import Mapping, Sequence
from typing import Any

from m2flow.errors import CheckpointError
from m2flow.trainers.sharding import shards

RNG = "random numbers"
"""The random numbers of the slots' processes, as the state of a role that every slot has."""
LINKS = "links"
"""Which roles were given to a method of another, such as a learner to a rollout's ``load_weights``."""
_SLOTS = "slots"


def joined(states: Sequence[Any]) -> Any:
    """What a checkpoint holds of a role, whose slots have these states."""
    return states[0] if len(states) == 1 else {_SLOTS: {str(rank): state for rank, state in enumerate(states)}}


def parts(saved: Any) -> list[Any]:
    """What ``joined`` was given."""
    is_several = isinstance(saved, Mapping) and saved.keys() == {_SLOTS}
    return list(saved[_SLOTS].values()) if is_several else [saved]


def whole(saved: Any) -> Any:
    """The state of a role whose slots work as one, as a single slot would have it.

    Raises:
        CheckpointError: parts are missing.
    """
    return shards.assemble(parts(saved))


def divided(saved: Any, num_slots: int) -> list[Any]:
    """The same, for another number of slots.

    Raises:
        CheckpointError: parts are missing.
    """
    return [shards.assemble(parts(saved), rank, num_ranks=num_slots) for rank in range(num_slots)]


def require_same_roles(own: set[str], saved: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another flow.

    Raises:
        CheckpointError: the roles with state are not those that were saved.
    """
    given = saved.keys() - {RNG, LINKS}
    if own != given:
        raise CheckpointError(
            f"the checkpoint holds the roles {sorted(given)}, this flow has {sorted(own)}: "
            "resume with the script that began the run"
        )
