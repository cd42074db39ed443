# SPDX-License-Identifier: Apache-2.0
"""Memory of an item is used again when it was freed and nobody has a lease on it, and not before."""

import random
import threading

import numpy as np
import pytest

from m2flow.errors import TransportError
from m2flow.transport.arena import Arena, Handle, Key
from m2flow.transport.reader import Reader

BIG = 100_000


def big(value: int) -> np.ndarray:
    return np.full(BIG, value, np.uint8)


def test_the_writer_reads_the_very_object():
    with Arena() as arena:
        item = {"small": 1}
        assert Reader(arena).read(arena.write(item)) is item


def test_small_items_travel_in_their_handle_and_large_ones_do_not():
    with Arena() as arena:
        small, large = arena.write(np.arange(3)), arena.write(big(1))
        assert small.payload is not None and small.place is None and not small.offset
        assert large.payload is None and large.place is not None
        for handle, item in ((small, np.arange(3)), (large, big(1))):
            found = Reader().read(handle)
            assert np.array_equal(found, item) and not found.flags.writeable


def test_memory_is_used_again_after_free():
    with Arena() as arena:
        first = arena.write(big(1))
        arena.free(first.key)
        second = arena.write(big(2))
        assert (first.place, first.offset) == (second.place, second.offset)
        with pytest.raises(TransportError, match=f"item {first.key.number} was freed"):
            Reader().read(first)


def test_memory_waits_for_the_last_lease():
    with Arena() as arena:
        handle = arena.write(big(1))
        arena.lease(handle.key, "a")
        arena.lease(handle.key, "b")
        arena.free(handle.key)
        arena.release(handle.key, "a")
        assert arena.write(big(2)).offset != handle.offset
        arena.release(handle.key, "b")
        assert arena.write(big(3)).offset == handle.offset


def test_leases_of_a_dead_reader_end_together():
    with Arena() as arena:
        handles = [arena.write(big(i)) for i in range(3)]
        for handle in handles:
            arena.lease(handle.key, "dead")
            arena.free(handle.key)
        arena.drop("dead")
        assert not arena.num_items


def test_a_reader_reports_an_item_when_its_last_array_has_died():
    released: list[Key] = []
    with Arena() as arena:
        handle = arena.write({"a": big(1), "b": big(2)})
        part = Reader(on_release=released.append).read(handle)["b"][5:9]
        assert released == [] and part.tolist() == [2] * 4
        del part
        assert released == [handle.key]


def test_items_without_arrays_and_small_items_are_reported_at_once():
    released: list[Key] = []
    with Arena() as arena:
        handles = [arena.write(item) for item in ("x" * BIG, 3, big(1))]
        readers = [Reader(on_release=released.append), Reader(arena, on_release=released.append)]
        kept = [readers[i].read(handle) for i, handle in ((0, handles[0]), (0, handles[1]), (1, handles[2]))]
        assert released == [handle.key for handle in handles] and len(kept) == 3


def test_what_is_kept_stays_right_while_others_are_freed_and_written():
    rng = random.Random(0)
    with Arena(segment_bytes=1 << 20, max_bytes=1 << 22) as arena:
        released: list[Key] = []
        reader, kept = Reader(on_release=released.append), {}
        for value in range(400):
            handle = arena.write(big(value % 251))
            arena.lease(handle.key)
            arena.free(handle.key)
            kept[value] = reader.read(handle)
            if len(kept) > 20:
                del kept[rng.choice(list(kept))]
            for key in released:
                arena.release(key)
            released.clear()
            assert all((array == value % 251).all() for value, array in kept.items())
        assert arena.num_bytes <= 1 << 22


def test_many_threads_write_and_free_without_a_wrong_byte():
    with Arena(segment_bytes=1 << 20) as arena:
        wrong = []

        def work(value: int) -> None:
            for i in range(30):
                handle = arena.write(big(value + i))
                found = Reader().read(handle)
                wrong.extend([] if (found == value + i).all() else [handle])
                arena.free(handle.key)

        threads = [threading.Thread(target=work, args=(40 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and not arena.num_items


def test_a_full_arena_says_what_fills_it():
    with Arena(max_bytes=1 << 20) as arena:
        handles = [arena.write(big(i)) for i in range(10)]
        with pytest.raises(TransportError, match=r"of 1,048,576 bytes are taken by 10 items"):
            arena.write(big(11))
        arena.free(handles[4].key)
        assert arena.write(big(11)).offset == handles[4].offset


def misuses(arena: Arena, handle: Handle):
    other = Arena().write(1)
    yield lambda: arena.free(other.key), "belongs to another arena"
    yield lambda: arena.release(handle.key, "nobody"), "has no lease"
    arena.free(handle.key)
    yield lambda: arena.free(handle.key), "was freed"
    yield lambda: arena.lease(handle.key), "was freed"
    yield lambda: arena.item(handle.key), "was freed"


def test_each_misuse_is_an_error():
    with Arena() as arena:
        for call, message in misuses(arena, arena.write(1)):
            with pytest.raises(TransportError, match=message):
                call()


def test_readers_keep_what_they_have_after_the_arena_is_closed():
    arena = Arena()
    reader, handle, other = Reader(), arena.write(big(3)), arena.write(big(4))
    array = reader.read(handle)
    arena.close()
    reader.forget(arena.id)
    assert (array == 3).all()
    with pytest.raises(TransportError, match="that process has ended"):
        reader.read(other)
