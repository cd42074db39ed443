# SPDX-License-Identifier: Apache-2.0
"""Writers and readers that are killed at any moment leave no file behind and never give wrong data."""

import os
import random
import time
from multiprocessing.connection import Connection

import numpy as np
from children import child

from m2flow.errors import TransportError
from m2flow.transport.arena import Arena, Handle, Key
from m2flow.transport.reader import Reader

SIZE = 1 << 20


def write_forever(connection: Connection, first: int) -> None:
    """Send handle after handle of arrays that hold one value each; free each when three more were sent."""
    arena, sent = Arena(segment_bytes=4 * SIZE), []
    for value in range(first, 2**31):
        sent.append(arena.write((value, np.full(SIZE // 8, value))))
        connection.send(sent[-1])
        if len(sent) > 3:
            arena.free(sent.pop(0).key)


def read_forever(connection: Connection, seed: int) -> None:
    """Read handles, keep some of the arrays, report released keys and anything that is wrong."""
    released: list[Key] = []
    reader, kept, rng = Reader(on_release=released.append), [], random.Random(seed)
    while True:
        value, array = reader.read(connection.recv())
        kept = [*kept, (value, array)][-rng.randint(1, 4) :]
        del array
        connection.send((released[:], [value for value, array in kept if (array != value).any()]))
        released.clear()


def shared_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "m2flow" in name}


def read(handle: Handle) -> list[int] | None:
    """The values in an item, or None where it is gone by now."""
    try:
        value, array = Reader().read(handle)
    except TransportError:
        return None
    found = [value, *np.unique(array).tolist()]
    return found if handle_is_current(handle) else None


def handle_is_current(handle: Handle) -> bool:
    """Nobody leased the item, so that it may have been freed while it was read: reading it again tells."""
    try:
        Reader().read(handle)
    except TransportError:
        return False
    return True


def test_a_killed_writer_leaves_nothing_and_what_was_read_stays_right():
    before = shared_files()
    rng = random.Random(1)
    with child(write_forever, 1) as (connection, process):
        kept, until = [], time.monotonic() + rng.uniform(0.2, 0.5)
        while time.monotonic() < until:
            kept.append(connection.recv())
            found = read(kept[-1])
            assert found is None or (found[0] == found[1] and len(found) == 2)
        process.kill()
        process.join()
        assert all(read(handle) is None for handle in kept)
    assert shared_files() == before


def feed(arena: Arena, turn: int, *, last: int) -> None:
    """Give a reader of its own items up to value ``last``, and kill it while it still has some."""
    name = f"reader {turn}"
    with child(read_forever, turn) as (connection, _):
        for value in range(last - 20, last):
            handle = arena.write((value, np.full(SIZE // 8, value)))
            arena.lease(handle.key, name)
            arena.free(handle.key)
            connection.send(handle)
            released, wrong = connection.recv()
            assert not wrong
            for key in released:
                arena.release(key, name)
    assert arena.num_items
    arena.drop(name)


def test_killed_readers_free_their_memory_and_never_see_a_wrong_byte():
    with Arena(segment_bytes=4 * SIZE, max_bytes=8 * SIZE) as arena:
        for turn in range(2):
            feed(arena, turn, last=20 * (turn + 1))
            assert not arena.num_items
