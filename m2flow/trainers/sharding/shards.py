# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors in a checkpoint: what each rank saves, and how any number of ranks finds its part again.

A tensor of n rows is divided over k ranks in runs of ceil(n / k) rows; the last ones may be shorter or empty. In a
rank's state a part stands as ``{"shard": rows, "begin": number of the first, "shape": that of the whole}``.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from m2flow.errors import CheckpointError

MARK = frozenset({"shard", "begin", "shape"})


def own_rows(num_rows: int, rank: int, *, num_ranks: int) -> range:
    """Which of ``num_rows`` belong to ``rank``."""
    each = -(-num_rows // num_ranks)
    return range(min(rank * each, num_rows), min((rank + 1) * each, num_rows))


def mark(rows: Shaped[Tensor, "rows *rest"], begin: int, *, shape: Iterable[int]) -> dict[str, Any]:
    """``rows`` of a tensor of ``shape``, from number ``begin`` on, as they stand in a state."""
    return {"shard": rows, "begin": begin, "shape": list(shape)}


def rows_of(saved: Any, wanted: range, *, shape: Iterable[int]) -> Shaped[Tensor, "rows *rest"]:
    """The ``wanted`` rows of a tensor that must have ``shape``, out of a part or a whole tensor.

    Raises:
        CheckpointError: they are not there, or it is of another shape.
    """
    rows, begin, whole = (saved["shard"], saved["begin"], saved["shape"]) if is_mark(saved) else (saved, 0, saved.shape)
    if list(whole) != list(shape) or wanted.start < begin or wanted.stop > begin + len(rows):
        raise CheckpointError(
            f"the checkpoint has rows {begin} to {begin + len(rows)} of a tensor of shape {list(whole)}, expected rows "
            f"{wanted.start} to {wanted.stop} of one of {list(shape)}: resume with the model and options that the run "
            "began with, its parts put together for this number of ranks (trainers.sharding.shards.assemble)"
        )
    return rows[wanted.start - begin : wanted.stop - begin]


def is_mark(value: Any) -> bool:
    """Whether this stands for a part of a tensor."""
    return isinstance(value, Mapping) and value.keys() == MARK


def assemble(parts: Iterable[Mapping[str, Any]], rank: int = 0, *, num_ranks: int = 1) -> dict[str, Any]:
    """The state of ``rank`` of ``num_ranks``, out of the states that any number of ranks saved.

    Only the rows of this rank are copied; of ``parts`` one is looked at after another. What is not divided is taken
    from the first. The state of a single rank holds whole tensors, as one that never was divided.

    Raises:
        CheckpointError: parts are missing.
    """
    pieces: dict[str, _Piece] = {}
    state: Any = None

    def take(path: str, part: Mapping[str, Any]) -> Any:
        if path not in pieces:
            pieces[path] = _Piece(part, rank, num_ranks=num_ranks)
        return pieces[path].take(part)

    for part in parts:
        taken = _map(part, take)
        state = taken if state is None else state
    missing = [path for path, piece in pieces.items() if piece.missing]
    if state is None or missing:
        raise CheckpointError(
            f"parts of the checkpoint are missing: {len(missing)} tensors are not whole ({', '.join(missing[:3])}); "
            "give the states of all ranks that saved it"
        )
    return state


class _Piece:
    """The rows of one tensor that a rank wants."""

    def __init__(self, part: Mapping[str, Any], rank: int, *, num_ranks: int) -> None:
        self.shape, self.num_ranks = list(part["shape"]), num_ranks
        self.wanted = own_rows(self.shape[0], rank, num_ranks=num_ranks)
        self.rows = part["shard"].new_empty([len(self.wanted), *self.shape[1:]])
        self.missing = len(self.wanted)

    def take(self, part: Mapping[str, Any]) -> Any:
        """Copy the rows that are wanted and in ``part``."""
        given = range(part["begin"], part["begin"] + len(part["shard"]))
        both = range(max(given.start, self.wanted.start), min(given.stop, self.wanted.stop))
        if both:
            at, source = both.start - self.wanted.start, both.start - given.start
            self.rows[at : at + len(both)] = part["shard"][source : source + len(both)]
            self.missing -= len(both)
        return self.rows if self.num_ranks == 1 else mark(self.rows, self.wanted.start, shape=self.shape)


def _map(tree: Any, change: Callable[[str, Mapping[str, Any]], Any], *, path: str = "") -> Any:
    """``tree`` with every part of a tensor changed."""
    if is_mark(tree):
        return change(path, tree)
    if isinstance(tree, Mapping):
        return {key: _map(value, change, path=f"{path}/{key}") for key, value in tree.items()}
    return tree
