# SPDX-License-Identifier: Apache-2.0
"""Memory that processes of one node share, and which of it is free.

A segment is an anonymous file in memory (``memfd_create``). It has no name in any folder: the kernel frees it when the
last process that uses it ends, in whatever way, so that a killed run leaves nothing behind, and it does not count
against the size of ``/dev/shm``, which containers keep at 64 MiB. Other processes of the same user open it through
``/proc/<pid>/fd``, as long as its owner lives; memory they have mapped stays valid after that.
"""

import bisect
import mmap
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from m2flow.errors import TransportError


@cache
def node_id() -> str:
    """Names the machine as shared memory sees it: one boot of one kernel, and one space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can still take: what the machine has, and what its control group is allowed."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    group = root / "sys/fs/cgroup"
    limit = (group / "memory.max").read_text(encoding="ascii").strip() if (group / "memory.max").exists() else "max"
    if limit != "max":
        found = min(found, int(limit) - int((group / "memory.current").read_text(encoding="ascii")))
    return found


class Place(NamedTuple):
    """Where a segment is on its node."""

    pid: int
    fd: int
    name: str
    size: int


class Segment:
    """Memory of ``size`` bytes that this process owns and that others may map.

    The pages are taken at once: a node without enough memory is an error here and no crash later, and writing is as
    fast as memcpy from the first byte on.

    Raises:
        TransportError: the node has no memory for it.
    """

    def __init__(self, name: str, size: int) -> None:
        if size > (available := available_bytes()):
            raise TransportError(_too_large(size, f"{available:,} bytes are available"))
        self._fd = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self._fd, 0, size)
            mapped = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise TransportError(_too_large(size, str(error))) from error
        self.place = Place(os.getpid(), self._fd, name, size)
        self.bytes = np.frombuffer(mapped, np.uint8)

    def close(self) -> None:
        """Let go of the memory; it is free when all readers have, too."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.bytes = -1, np.empty(0, np.uint8)


def _too_large(size: int, why: str) -> str:
    return (
        f"there are no {size:,} bytes of shared memory to be had ({why}): free memory on this node, "
        "or let fewer or smaller items be on their way at a time"
    )


def mapped(place: Place) -> np.ndarray:
    """The memory of another process's segment, read-only.

    Raises:
        TransportError: the owner is gone.
    """
    path = f"/proc/{place.pid}/fd/{place.fd}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TransportError(_gone(place, str(error))) from error
    try:
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name != f"/memfd:{place.name} (deleted)":
            raise TransportError(_gone(place, f"its number now belongs to {name}"))
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return np.frombuffer(mmap.mmap(fd, place.size, flags=flags, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)


def _gone(place: Place, why: str) -> str:
    return (
        f"the shared memory {place.name} of process {place.pid} cannot be opened ({why}): that process has ended, and "
        "its items with it; make them again"
    )


class Extents:
    """Which parts of ``capacity`` bytes are free: first fit, from the front, so that warm memory is used again."""

    def __init__(self, capacity: int) -> None:
        self._free = [(0, capacity)] if capacity else []

    @property
    def num_free_bytes(self) -> int:
        """How much is free, in however many parts."""
        return sum(size for _, size in self._free)

    def take(self, size: int) -> int | None:
        """The offset of ``size`` bytes that were free until now; None where no free part is that large."""
        for i, (offset, length) in enumerate(self._free):
            if length >= size:
                self._free[i : i + 1] = [(offset + size, length - size)] if length > size else []
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """Take back what ``take`` gave; neighbours that are free become one."""
        i = bisect.bisect(self._free, (offset, 0))
        begin, end, first, last = offset, offset + size, i, i
        if i < len(self._free) and self._free[i][0] == end:
            end, last = end + self._free[i][1], i + 1
        if i and sum(self._free[i - 1]) == offset:
            begin, first = self._free[i - 1][0], i - 1
        self._free[first:last] = [(begin, end - begin)]
