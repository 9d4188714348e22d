"""Memory of the driver to which workers on its machine write their vectors.

Through Ray's object store, which copies them in and out, a round takes 6 ms more: longer than small models
train. The memory is a file without a name, so that nothing is left of it, however the processes end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.memory import replies_limit
from fedtide.base.spill import FileMap, folder_of_large_files, reserve

Rows = NDArray[np.float32]
POSSIBLE = hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")  # on Linux


class Lease(NamedTuple):
    """Rows of the driver's memory, as a worker opens them."""

    path: str  # of the file, among those that the driver has open
    number: int  # of the file, as paths are used again
    on_disk: bool
    start: int
    num_rows: int
    width: int

    def part(self, start: int, count: int) -> Lease:
        """Return the lease of `count` of these rows, from row `start` on."""
        return self._replace(start=self.start + start, num_rows=count)


class SharedRows:
    """Lends the rows of a round; where they are large, they lie on the disk.

    Memory is lent again only after all views of it have been deleted: a strategy may keep a reply for later.
    """

    def __init__(self) -> None:
        self._file, self._number, self._on_disk = -1, 0, False
        self._map: mmap.mmap | None = None
        self._lent: weakref.ref[Rows] | None = None

    def lend(self, count: int, width: int) -> tuple[Lease, Rows]:
        """Lend rows of shape (count, width), with arbitrary content, and what a worker needs to open them.

        OSError: the disk has too little space.
        """
        size = max(1, 4 * count * width)
        on_disk = size > replies_limit()
        is_free = self._map is not None and (self._lent is None or self._lent() is None)
        fits = is_free and on_disk == self._on_disk and size <= len(self._map or ())
        if is_free and (on_disk or not fits):  # what the file has would be read from the disk, or takes room
            os.ftruncate(self._file, 0)
        if not fits:
            self._map = None  # also if there is no room for the next one
            self._map = self._new_file(size, on_disk)
        elif on_disk:
            reserve(self._file, size)
        assert self._map is not None
        whole = np.frombuffer(self._map, np.float32, count * width)  # it lives as long as any view of it
        self._lent = weakref.ref(whole)
        lease = Lease(f"/proc/{os.getpid()}/fd/{self._file}", self._number, on_disk, 0, count, width)
        return lease, whole.reshape(count, width)

    def retire(self) -> None:
        """Never lend again what is lent now: a failed worker may still write to it."""
        self._map = None

    def close(self) -> None:
        """Have no file open; views stay valid."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._map = -1, None

    def _new_file(self, size: int, on_disk: bool) -> mmap.mmap:
        self.close()
        if POSSIBLE and not on_disk:
            self._file = os.memfd_create("fedtide rows")
        else:
            with tempfile.TemporaryFile(dir=folder_of_large_files()) as file:
                self._file = os.dup(file.fileno())
        self._number, self._on_disk = self._number + 1, on_disk
        reserve(self._file, size)
        return _mapped(self._file, on_disk)


class AttachedRows:
    """Opens the driver's rows in a worker."""

    def __init__(self) -> None:
        self._number = 0
        self._map: mmap.mmap | None = None

    def open(self, lease: Lease) -> Rows:
        """Return the rows of a lease, shape (num_rows, width)."""
        if lease.number != self._number or self._map is None:
            with open(lease.path, "r+b") as file:
                self._number, self._map = lease.number, _mapped(file.fileno(), lease.on_disk)
        width = lease.width
        rows = np.frombuffer(self._map, np.float32, lease.num_rows * width, 4 * lease.start * width)
        return rows.reshape(lease.num_rows, width)


def _mapped(file: int, on_disk: bool) -> mmap.mmap:
    return (FileMap if on_disk else mmap.mmap)(file, 0)
