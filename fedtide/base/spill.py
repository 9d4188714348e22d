"""Arrays in a temporary file, where they do not fit into RAM.

A full disk is an error message, not a crash: files are not written through a mapping, or all their space is
reserved before.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import why
from fedtide.base.memory import replies_limit


def folder_of_large_files() -> str:
    """Return the system's folder for large temporary files: not /tmp, which may itself be in RAM."""
    usual = tempfile.gettempdir()
    return "/var/tmp" if usual == "/tmp" and os.access("/var/tmp", os.W_OK) else usual


class SpillFile:
    """A file without a name that stores arrays at any position, and vanishes with the process.

    `folder` is by default that of large files. `what` describes the content, and `remedy` is advice for a
    user whose folder is full, for messages.
    """

    def __init__(self, what: str, folder: str = "", remedy: str = "set TMPDIR") -> None:
        self._what, self._remedy = what, remedy
        self._folder = folder or folder_of_large_files()
        os.makedirs(self._folder, exist_ok=True)
        self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115, open as long as this object

    def write(self, array: NDArray[Any], start: int) -> int:
        """Write an array at byte `start`; return the byte after its end."""
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        try:
            self._file.seek(start)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            message = f"{why(error)} while storing {self._what}; free space or {self._remedy}"
            raise OSError(error.errno, message, self._folder) from error
        return start + array.nbytes

    def read(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        """Read the array that was written at byte `start`."""
        array = np.empty(shape, dtype)
        left = array.reshape(-1).view(np.uint8).data
        self._file.seek(start)
        while left:
            done = self._file.readinto(left)
            if not done:
                raise OSError(f"the file of {self._what} has been truncated")
            left = left[done:]
        return array

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return os.fstat(self._file.fileno()).st_size

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return a read-only view of the beginning of the file.

        Each call maps it again: pages of a lasting mapping would count as memory of this process.
        """
        return np.memmap(self._file, dtype, "r", shape=shape)


class FileMap(mmap.mmap):
    """A file that is mapped into memory, whose pages need not be there."""


def new_rows(count: int, width: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array (count, width) for the replies of a round: in RAM, or in a file without a name.

    OSError: the disk has too little space.
    """
    size = count * width * dtype.itemsize
    if size <= replies_limit():
        return np.empty((count, width), dtype)
    folder = folder_of_large_files()
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            reserve(file.fileno(), size)
        except OSError as error:
            message = f"{why(error)} for the replies of {count} clients; free space or set TMPDIR"
            raise OSError(error.errno, message, folder) from error
        return np.frombuffer(FileMap(file.fileno(), size), dtype).reshape(count, width)


def reserve(descriptor: int, size: int) -> None:
    """Reserve space for a file: otherwise, writing to its mapping on a full disk would kill the writer."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    left = size
    while left:  # on macOS and Windows
        left -= os.write(descriptor, bytes(min(left, 1 << 20)))


def let_go(array: NDArray[Any]) -> None:
    """Have this process hold the pages of a contiguous array no longer, if it lies in a `FileMap`.

    What it holds counts as its memory. The system keeps the pages for as long as it has room for them.
    """
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, FileMap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, first, start + array.nbytes - first)
