# SPDX-License-Identifier: Apache-2.0
"""A memory holds the last items, draws each alike, and goes on from a checkpoint bit for bit, on disk too."""

from pathlib import Path

import numpy as np
import pytest

from m2flow.data.replay import Replay
from m2flow.errors import CheckpointError, DataError


def items(begin: int, end: int) -> dict[str, np.ndarray]:
    """Numbers from ``begin`` to ``end``, and as rows of two."""
    numbers = np.arange(begin, end)
    return {"number": numbers, "seen/state": np.stack([numbers, -numbers], 1).astype(np.float32)}


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param else None


def test_the_last_items_are_drawn_and_no_others(folder: Path | None) -> None:
    memory = Replay(10, folder=folder)
    for begin, end in [(0, 3), (3, 9), (9, 40), (40, 44)]:
        memory.add(items(begin, end))
        drawn = memory.draw(np.random.default_rng(0), 500)
        assert sorted(set(drawn["number"].tolist())) == list(range(max(0, end - 10), end))
        assert (drawn["seen/state"] == np.stack([drawn["number"], -drawn["number"]], 1)).all()
        assert len(memory) == min(10, end)


def test_it_goes_on_from_a_checkpoint_after_which_other_items_came(folder: Path | None) -> None:
    memory = Replay(10, folder=folder)
    memory.add(items(0, 13))
    state = memory.state()
    state = {**state, "arrays": state["arrays"] and {k: v.copy() for k, v in state["arrays"].items()}}
    wanted = memory.draw(np.random.default_rng(1), 50)
    memory.add(items(100, 102))
    again = Replay(10, folder=folder)
    again.load_state(state)
    found = again.draw(np.random.default_rng(1), 50)
    assert all((found[name] == array).all() for name, array in wanted.items())


def test_a_folder_that_went_on_too_far_or_holds_another_memory_is_refused(tmp_path: Path) -> None:
    memory = Replay(8, folder=tmp_path)
    memory.add(items(0, 9))
    state = memory.state()
    memory.add(items(9, 15))
    with pytest.raises(CheckpointError, match="9 items at the checkpoint and has 15 now"):
        Replay(8, folder=tmp_path).load_state(state)
    with pytest.raises(DataError, match="holds a memory already"):
        Replay(8, folder=tmp_path).add(items(0, 1))
    with pytest.raises(CheckpointError, match="in another place"):
        Replay(8).load_state(state)


def test_a_folder_with_files_of_others_keeps_them(tmp_path: Path) -> None:
    other = tmp_path / "number.npy"
    np.save(other, np.arange(3))
    memory = Replay(8, folder=tmp_path)
    memory.load_state({"total": 0, "arrays": None})
    with pytest.raises(DataError, match="holds a memory already"):
        memory.add(items(0, 1))
    assert np.load(other).tolist() == [0, 1, 2]


def test_another_capacity_is_refused_and_nothing_cannot_be_drawn() -> None:
    memory = Replay(8)
    with pytest.raises(DataError, match="empty memory"):
        memory.draw(np.random.default_rng(0), 1)
    memory.add(items(0, 9))
    with pytest.raises(CheckpointError, match="capacity=5"):
        Replay(5).load_state(memory.state())
