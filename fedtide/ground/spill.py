"""Arrays in an unnamed temporary file, where they do not fit into RAM.

The file vanishes with the process. It is not written through a mapping, so that a full disk is an error
message, not a crash.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SpillFile:
    """A file that stores arrays at any position, in a folder, by default the system's for temporary files.

    `what` describes the content, and `remedy` is advice for a user whose folder is full, for messages.
    """

    def __init__(self, what: str, folder: str = "", remedy: str = "set TMPDIR") -> None:
        self._what, self._remedy = what, remedy
        self._folder = folder or tempfile.gettempdir()
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
            message = f"{error.strerror} while storing {self._what}; free space or {self._remedy}"
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
