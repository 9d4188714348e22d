"""Memory that the driver and the workers of a machine share: a worker trains where the driver reads.

Ray's object store would copy each result in and out, and costs several milliseconds a round, which is more
than small models take to train.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PREFIX = "flexfl-rows-"


class Lease(NamedTuple):
    """Where rows lie: what a worker needs to find them."""

    path: str
    start: int
    num_rows: int
    width: int
    dtype: str

    def part(self, start: int, count: int) -> Lease:
        """Return `count` of the rows, from row `start` of these on."""
        return self._replace(start=self.start + start, num_rows=count)


class SharedRows:
    """Lends arrays of rows that workers of this machine can write to.

    Memory is used again as soon as nobody holds a view of what was lent; until then the next loan gets other
    memory, so that whoever keeps a reply for later keeps what was sent.
    """

    def __init__(self) -> None:
        _remove_stale()
        self._blocks: list[_Block] = []

    def lend(self, count: int, width: int, dtype: np.dtype[Any]) -> tuple[Lease, NDArray[Any]]:
        """Lend rows.

        Parameters
        ----------
        count, width, dtype
            Their number, their length and the type of their entries.

        Returns
        -------
        lease, rows
            What a worker needs, and the rows themselves, with arbitrary content.

        Raises
        ------
        OSError
            There is no space left, neither in shared memory nor in the folder for temporary files.
        """
        size = max(1, count * width * dtype.itemsize)
        free = [block for block in self._blocks if block.is_free]
        block = next((block for block in free if block.size >= size), None)
        if block is None:
            for small in free:
                small.close()
                self._blocks.remove(small)
            block = _Block(size)
            self._blocks.append(block)
        rows = block.rows(count, width, dtype)
        return Lease(block.path, 0, count, width, dtype.str), rows

    def close(self) -> None:
        """Remove the files; views that somebody still holds stay as they are."""
        for block in self._blocks:
            block.close()
        self._blocks = []


class AttachedRows:
    """The worker's side of `SharedRows`."""

    def __init__(self) -> None:
        self._maps: dict[str, mmap.mmap] = {}

    def open(self, lease: Lease) -> NDArray[Any]:
        """Return the rows of a lease, shape (num_rows, width)."""
        if lease.path not in self._maps:
            for path in [path for path in self._maps if not os.path.exists(path)]:
                del self._maps[path]  # closed when the last view of it goes
            with open(lease.path, "r+b") as file:
                self._maps[lease.path] = mmap.mmap(file.fileno(), 0)
        dtype = np.dtype(lease.dtype)
        offset = lease.start * lease.width * dtype.itemsize
        rows = np.frombuffer(self._maps[lease.path], dtype, lease.num_rows * lease.width, offset)
        return rows.reshape(lease.num_rows, lease.width)


class _Block:
    """A file in shared memory, or in the folder for temporary files where that is too small."""

    def __init__(self, size: int) -> None:
        self.size = size
        folders = [folder for folder in ("/dev/shm",) if os.path.isdir(folder)]
        for folder in [*folders, tempfile.gettempdir()]:
            self._fd, self.path = tempfile.mkstemp(prefix=PREFIX, dir=folder)
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # for `_remove_stale`; it goes when this process ends
            try:
                os.posix_fallocate(self._fd, 0, size)  # now, or a full disk would kill whoever writes
            except OSError:
                self.close()
                if folder == tempfile.gettempdir():
                    raise
            else:
                break
        self._map = mmap.mmap(self._fd, size)
        self._lent: weakref.ref[NDArray[Any]] | None = None

    @property
    def is_free(self) -> bool:
        """Whether nobody holds a view of the rows that were lent."""
        return self._lent is None or self._lent() is None

    def rows(self, count: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array, which all views of it keep alive."""
        whole = np.frombuffer(self._map, dtype, count * width)
        self._lent = weakref.ref(whole)
        return whole.reshape(count, width)

    def close(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._fd)


def _remove_stale() -> None:
    """Remove the files of processes that were killed: nobody holds their lock.

    A new file has a minute for its process to get there.
    """
    for folder in ("/dev/shm", tempfile.gettempdir()):
        for path in Path(folder).glob(f"{PREFIX}*"):
            with suppress(OSError), path.open("rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime < 60:
                    continue
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
