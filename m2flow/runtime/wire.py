# SPDX-License-Identifier: Apache-2.0
"""Questions and answers between the processes of a run, over Unix sockets and TCP.

Only processes that hold the run's key are answered; the key is drawn anew for every run and reaches the slots through
Ray. Messages are small: handles, numbers, errors. Payload goes through shared memory.
"""

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

from m2flow.errors import FlowError
from m2flow.transport.segment import node_id

_BACKLOG = 1024


class Address(NamedTuple):
    """Where a server listens: a Unix socket on its own machine, TCP from others."""

    node: str
    """Where the socket can be reached (``node_id``)."""
    socket: str
    host: str
    port: int
    key: bytes


def outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What ``work`` returns, or what it raises: errors of one process become answers to another."""
    try:
        return work(), None
    except BaseException as error:
        return None, error


class Disconnected(FlowError):
    """The run's own process does not answer any more."""


class _Own(threading.local):
    """A thread's connection."""

    connection: Connection | None = None


class Server:
    """Answers calls of ``methods``, each connection on a thread of its own.

    Args:
        methods: what may be called, by name.
        host: the network interface that other machines reach this one by.
    """

    def __init__(self, methods: Mapping[str, Callable[..., Any]], *, host: str = "127.0.0.1") -> None:
        self._methods = methods
        self._folder = tempfile.TemporaryDirectory(prefix="m2flow-")
        key = secrets.token_bytes(32)
        path = os.path.join(self._folder.name, "hub")
        self._listeners = [
            Listener(path, "AF_UNIX", backlog=_BACKLOG, authkey=key),
            Listener((host, 0), "AF_INET", backlog=_BACKLOG, authkey=key),
        ]
        port = int(self._listeners[1].address[1])
        self.address = Address(node_id(), path, host, port, key)
        self._closed = False
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True, name="m2flow-accept").start()

    def _accept(self, listener: Listener) -> None:
        while not self._closed:
            try:
                connection = listener.accept()
            except (OSError, EOFError, AuthenticationError):
                # Closed, or a stranger: neither ends the run.
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="m2flow-serve").start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    method, args, kwargs = connection.recv()
                except (EOFError, OSError):
                    return
                connection.send(outcome(partial(self._methods[method], *args, **kwargs)))

    def close(self) -> None:
        """Answer no further connections."""
        self._closed = True
        for listener in self._listeners:
            listener.close()
        self._folder.cleanup()


class Caller:
    """The other end: ``caller("claim", 3)`` asks the server. Each thread has a connection of its own.

    Raises:
        Disconnected: nothing answers there any more.
        Exception: what the method raised.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._own = _Own()

    def __call__(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        try:
            connection = self._own.connection or self._connect()
            connection.send((method, args, kwargs))
            value, raised = connection.recv()
        except (EOFError, OSError) as error:
            raise Disconnected("the run's own process does not answer any more: it has ended") from error
        if raised is not None:
            raise raised
        return value

    def _connect(self) -> Connection:
        a = self.address
        where = (a.socket, "AF_UNIX") if a.node == node_id() else ((a.host, a.port), "AF_INET")
        self._own.connection = Client(*where, authkey=a.key)
        return self._own.connection
