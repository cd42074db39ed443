# SPDX-License-Identifier: Apache-2.0
"""Blocks from other nodes, over TCP: raw bytes, received where they shall stay.

Both ends prove that they know the run's key before anything else is said (the challenge of Python's multiprocessing).
Nothing is encrypted: use networks that you trust, as for NCCL and gloo.
"""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Protocol

import numpy as np

from m2flow.errors import TransportError

_QUESTION, _ANSWER = struct.Struct("<Q"), struct.Struct("<q")
_GONE = -1


class Served(Protocol):
    """What is known of a block of another node; a ``Handle`` is one."""

    @property
    def key(self) -> tuple[str, int]:
        """Its owner, and its number there."""
        ...

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that serve it."""
        ...


def _require(authkey: bytes) -> None:
    if len(authkey) < 16:
        raise TransportError(
            f"a key of {len(authkey)} bytes keeps nobody out: give all processes of the run the same secret of at "
            "least 16 bytes, such as secrets.token_bytes(32)"
        )


def _prepare(sock: socket.socket, timeout_s: float) -> None:
    sock.settimeout(None)
    limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for side in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, side, limit)


def _shake_hands(sock: socket.socket, authkey: bytes, *, is_server: bool) -> None:
    """Each side answers the other's challenge."""
    connection = Connection(os.dup(sock.fileno()))
    try:
        for challenge in (deliver_challenge, answer_challenge) if is_server else (answer_challenge, deliver_challenge):
            challenge(connection, authkey)
    finally:
        connection.close()


def _receive(sock: socket.socket, view: memoryview) -> None:
    """Fill ``view``."""
    done = 0
    while done < len(view):
        count = sock.recv_into(view[done:])
        if not count:
            raise EOFError("the other end has closed the connection")
        done += count


class Server:
    """Answers ``Peers`` of other nodes from threads of this process, until it is closed.

    Args:
        borrow: gives the block with a number, which must stay as it is until the context ends; raises TransportError
            where there is none (``Arena.borrow`` does this).
        host: the address that other nodes reach this one by; a port is chosen by the system.
        timeout_s: how long a peer may leave a block unread that it asked for.

    Raises:
        TransportError: the key is too short.
    """

    def __init__(
        self,
        borrow: Callable[[int], AbstractContextManager[np.ndarray]],
        *,
        authkey: bytes,
        host: str = "127.0.0.1",
        timeout_s: float = 60.0,
    ) -> None:
        _require(authkey)
        self._borrow, self._authkey, self._timeout_s = borrow, authkey, timeout_s
        self._listener = socket.create_server((host, 0))
        self.address: tuple[str, int] = (host, self._listener.getsockname()[1])
        self._peers: set[socket.socket] = set()
        threading.Thread(target=self._listen, name="m2flow-blocks", daemon=True).start()

    def close(self) -> None:
        """Serve nobody any more."""
        for sock in (self._listener, *self._peers):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._peers.add(sock)
                threading.Thread(target=self._serve, args=(sock,), name="m2flow-block", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """One peer: it has a limited time to prove itself, after that it may ask whenever it likes."""
        with sock, suppress(OSError, EOFError, AuthenticationError):
            _prepare(sock, self._timeout_s)
            _shake_hands(sock, self._authkey, is_server=True)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
            question = bytearray(_QUESTION.size)
            while True:
                _receive(sock, memoryview(question))
                self._answer(sock, *_QUESTION.unpack(question))
        self._peers.discard(sock)

    def _answer(self, sock: socket.socket, number: int) -> None:
        try:
            with self._borrow(number) as block:
                sock.sendall(_ANSWER.pack(block.nbytes))
                sock.sendall(block.data)
        except TransportError:
            sock.sendall(_ANSWER.pack(_GONE))


class Incoming:
    """A block on its way."""

    def __init__(self, sock: socket.socket, size: int) -> None:
        self._sock, self.size, self.num_left = sock, size, size

    def into(self, target: np.ndarray) -> None:
        """Receive the next ``target.nbytes`` bytes into a contiguous array."""
        self.num_left -= target.nbytes
        _receive(self._sock, target.reshape(-1).view(np.uint8).data)


class Peers:
    """Connections to the servers of other nodes, kept for the next time.

    Args:
        authkey: the run's secret.
        timeout_s: how long a server may be silent.
    """

    def __init__(self, *, authkey: bytes, timeout_s: float = 60.0) -> None:
        self._authkey, self._timeout_s = authkey, timeout_s
        self._idle: dict[tuple[str, int], list[socket.socket]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close what is not in use."""
        with self._lock:
            for sock in (sock for idle in self._idle.values() for sock in idle):
                sock.close()
            self._idle.clear()

    @contextmanager
    def open(self, block: Served) -> Iterator[Incoming]:
        """Ask the owner for a block; all of it must be received before the context ends.

        Raises:
            TransportError: the block was freed, its owner cannot be reached or does not have the same key.
        """
        _require(self._authkey)
        sock = None
        try:
            sock, size = self._ask(block)
            incoming = Incoming(sock, size)
            yield incoming
            if incoming.num_left:
                raise TransportError(f"{incoming.num_left} of {size} bytes were not received: receive all of a block")
        except (OSError, EOFError, AuthenticationError) as error:
            raise TransportError(
                f"item {block.key[1]} of {block.key[0]} cannot be fetched from {block.address} "
                f"({type(error).__name__}: {error}): its process has ended, cannot be reached or has another authkey"
            ) from error
        else:
            with self._lock:
                self._idle.setdefault(_address(block), []).append(sock)
            sock = None
        finally:
            if sock is not None:
                sock.close()

    def _ask(self, block: Served) -> tuple[socket.socket, int]:
        """A connection on which the block comes now, and its size; kept ones that died meanwhile are passed over."""
        while sock := self._kept(_address(block)):
            with suppress(OSError, EOFError):
                return sock, _answered(sock, block)
            sock.close()
        sock = socket.create_connection(_address(block), timeout=self._timeout_s)
        try:
            _prepare(sock, self._timeout_s)
            _shake_hands(sock, self._authkey, is_server=False)
            return sock, _answered(sock, block)
        except BaseException:
            sock.close()
            raise

    def _kept(self, address: tuple[str, int]) -> socket.socket | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None


def _address(block: Served) -> tuple[str, int]:
    if block.address is None:
        raise TransportError(
            f"item {block.key[1]} of {block.key[0]} is on another node, and its owner serves none: start a Server there"
        )
    return block.address


def _answered(sock: socket.socket, block: Served) -> int:
    sock.sendall(_QUESTION.pack(block.key[1]))
    answer = bytearray(_ANSWER.size)
    _receive(sock, memoryview(answer))
    (size,) = _ANSWER.unpack(answer)
    if size == _GONE:
        raise TransportError(f"item {block.key[1]} of {block.key[0]} was freed while somebody still meant to read it")
    return size
