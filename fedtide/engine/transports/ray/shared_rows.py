"""Memory that the driver shares with the workers on its machine: workers write results where it reads them.

Ray's object store would copy each result in and out. That costs several milliseconds per round, more than
small models take to train.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.transports.ray.leftovers import ROWS, SHARED_MEMORY, lock
from fedtide.ground.memory import replies_limit
from fedtide.ground.spill import FileMap, folder_of_large_files, reserve


class Lease(NamedTuple):
    """Describes rows of shared memory, so that a worker can open them."""

    path: str
    start: int
    num_rows: int
    width: int
    dtype: str

    def part(self, start: int, count: int) -> Lease:
        """Return the lease of `count` of these rows, from row `start` on."""
        return self._replace(start=self.start + start, num_rows=count)


class SharedRows:
    """Lends arrays of rows, to which workers on this machine can write.

    Memory is lent again only after all views of the array that was lent have been deleted. A strategy may
    therefore keep a reply for later: nothing overwrites it.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def lend(self, count: int, width: int, dtype: np.dtype[Any]) -> tuple[Lease, NDArray[Any]]:
        """Lend rows of shape (count, width), with arbitrary content, and what a worker needs to open them.

        OSError: neither shared memory nor the folder for temporary files has enough space.
        """
        # Pages of a large file would be read from the disk before they are written again.
        self._close([block for block in self._blocks if block.retired or (block.is_free and block.on_disk)])
        size = max(1, count * width * dtype.itemsize)
        free = [block for block in self._blocks if block.is_free]
        block = next((block for block in free if block.size >= size), None)
        if block is None:
            self._close(free)  # too small
            in_memory = sum(block.size for block in self._blocks if not block.on_disk)
            block = _Block(size, in_memory + size > replies_limit())
            self._blocks.append(block)
        rows = block.rows(count, width, dtype)
        return Lease(block.path, 0, count, width, dtype.str), rows

    def retire(self) -> None:
        """Never lend again what is lent now: a failed worker may still write to it.

        Other workers can open it until the next loan.
        """
        for block in self._blocks:
            block.retired |= not block.is_free

    def close(self) -> None:
        """Remove the files; existing views stay valid."""
        self._close(self._blocks)

    def _close(self, blocks: list[_Block]) -> None:
        for block in [*blocks]:
            block.close()
            self._blocks.remove(block)


class AttachedRows:
    """Opens rows of `SharedRows` in a worker."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap.mmap] = {}

    def open(self, lease: Lease) -> NDArray[Any]:
        """Return the rows of a lease, shape (num_rows, width)."""
        if lease.path not in self._maps:
            for path in [path for path in self._maps if not os.path.exists(path)]:
                del self._maps[path]  # closed with the last view of it
            with open(lease.path, "r+b") as file:
                self._maps[lease.path] = _mapped(file.fileno(), lease.path)
        dtype = np.dtype(lease.dtype)
        offset = lease.start * lease.width * dtype.itemsize
        rows = np.frombuffer(self._maps[lease.path], dtype, lease.num_rows * lease.width, offset)
        return rows.reshape(lease.num_rows, lease.width)


class _Block:
    """A file in shared memory, or where that is too small, or `on_disk`, in the folder for large files."""

    def __init__(self, size: int, on_disk: bool) -> None:
        self.size, self.on_disk, self.retired = size, on_disk, False
        self._lent: weakref.ref[NDArray[Any]] | None = None
        folders = [SHARED_MEMORY] if os.path.isdir(SHARED_MEMORY) and not on_disk else []
        for folder in [*folders, folder_of_large_files()]:
            self._fd, self.path = tempfile.mkstemp(prefix=ROWS, dir=folder)
            lock(self._fd)
            try:
                reserve(self._fd, size)
            except OSError:
                self.close()
                if folder != SHARED_MEMORY:
                    raise
            else:
                break
        self._map = _mapped(self._fd, self.path)

    @property
    def is_free(self) -> bool:
        """Whether all views of the rows that were lent have been deleted."""
        return self._lent is None or self._lent() is None

    def rows(self, count: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array; it is alive as long as any view of it."""
        whole = np.frombuffer(self._map, dtype, count * width)
        self._lent = weakref.ref(whole)
        return whole.reshape(count, width)

    def close(self) -> None:
        """Remove the file."""
        if self.on_disk and self.is_free and not self.retired:
            with suppress(OSError):
                os.truncate(self._fd, 0)  # at once: workers have it mapped until they need the next one
        os.close(self._fd)
        with suppress(OSError):  # removed already; Windows removes no file that is mapped
            os.unlink(self.path)


def _mapped(descriptor: int, path: str) -> mmap.mmap:
    """Map a whole file of rows."""
    kind = mmap.mmap if os.path.dirname(path) == SHARED_MEMORY else FileMap
    return kind(descriptor, 0)
