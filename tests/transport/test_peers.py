# SPDX-License-Identifier: Apache-2.0
"""Items come from other nodes only to those who have the key, and a node that is gone is a clear error."""

import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from children import child

from m2flow.errors import TransportError
from m2flow.transport.arena import Arena, Key
from m2flow.transport.peers import Peers, Server
from m2flow.transport.reader import Reader

KEY = secrets.token_bytes(32)
ITEM = {"a": np.arange(100_000), "b": [np.ones(3, np.float32)]}


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        server = Server(arena.borrow, authkey=KEY)
        arena.address = server.address
        yield arena
        server.close()


def test_an_item_of_another_node_is_fetched(arena: Arena):
    released: list[Key] = []
    reader, handle = Reader(node="another", authkey=KEY, on_release=released.append), arena.write(ITEM)
    for _ in range(2):
        found = reader.read(handle)
        assert np.array_equal(found["a"], ITEM["a"]) and np.array_equal(found["b"][0], ITEM["b"][0])
        assert not found["a"].flags.writeable
    assert released == [handle.key] * 2
    arena.free(handle.key)
    # The server's own lease ends when it has sent the last byte, which may be after that byte is here.
    deadline = time.monotonic() + 15
    while arena.num_items and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not arena.num_items
    reader.close()


def test_connections_are_used_again(arena: Arena):
    peers, handle = Peers(authkey=KEY), arena.write(ITEM)
    ports = set()
    for _ in range(3):
        with peers.open(handle) as incoming:
            ports.add(incoming._sock.getsockname())
            incoming.into(np.empty(incoming.size, np.uint8))
    assert len(ports) == 1


def test_a_freed_item_is_said_to_be_freed_and_the_server_goes_on(arena: Arena):
    reader, gone, there = Reader(node="another", authkey=KEY), arena.write(ITEM), arena.write(ITEM)
    arena.free(gone.key)
    with pytest.raises(TransportError, match="was freed while somebody still meant to read it"):
        reader.read(gone)
    assert reader.read(there)["a"][-1] == 99_999


def test_a_block_that_is_not_received_whole_is_an_error_and_spoils_nothing(arena: Arena):
    peers, handle = Peers(authkey=KEY), arena.write(ITEM)
    with pytest.raises(TransportError, match="bytes were not received"), peers.open(handle) as incoming:
        incoming.into(np.empty(10, np.uint8))
    assert not peers._idle


def test_who_has_another_key_gets_nothing(arena: Arena):
    with pytest.raises(TransportError, match="has another authkey"):
        Reader(node="another", authkey=b"x" * 32).read(arena.write(ITEM))


def test_who_sends_rubbish_gets_nothing_and_the_server_goes_on(arena: Arena):
    assert arena.address is not None
    with socket.create_connection(arena.address) as stranger:
        stranger.sendall(b"\0" * 1000)
        received = bytearray()
        with suppress(ConnectionResetError):
            while more := stranger.recv(1000):
                received += more
    assert len(received) < 200
    assert Reader(node="another", authkey=KEY).read(arena.write(ITEM))["a"][1] == 1


def test_a_short_key_is_refused_on_both_sides(arena: Arena):
    with pytest.raises(TransportError, match="keeps nobody out"):
        Server(arena.borrow, authkey=b"short")
    with pytest.raises(TransportError, match="keeps nobody out"):
        Reader(node="another").read(arena.write(ITEM))


def test_an_owner_that_serves_nobody_is_named():
    with Arena() as arena, pytest.raises(TransportError, match="start a Server there"):
        Reader(node="another", authkey=KEY).read(arena.write(ITEM))


def serve(connection, key: bytes) -> None:
    arena = Arena()
    arena.address = Server(arena.borrow, authkey=key).address
    connection.send(arena.write(ITEM))
    connection.recv()


def test_an_owner_that_was_killed_is_a_clear_error_by_both_ways():
    with child(serve, KEY) as (connection, process):
        handle = connection.recv()
        near, far = Reader(), Reader(node="another", authkey=KEY)
        assert np.array_equal(near.read(handle)["a"], far.read(handle)["a"])
        near.forget(handle.key.arena)
        process.kill()
        process.join()
        with pytest.raises(TransportError, match="that process has ended"):
            near.read(handle)
        with pytest.raises(TransportError, match="has ended, cannot be reached or"):
            far.read(handle)
