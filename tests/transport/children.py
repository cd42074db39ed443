# SPDX-License-Identifier: Apache-2.0
"""Processes of these tests' own: a function of a module, run by a fresh interpreter that talks through a pipe."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def child(function: Callable[..., Any], *args: Any) -> Iterator[tuple[Connection, SpawnProcess]]:
    """``function(connection, *args)`` in a new process, which is killed at the end."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=function, args=(there, *args), daemon=True)
    process.start()
    there.close()
    try:
        yield here, process
    finally:
        process.kill()
        process.join()
        here.close()
