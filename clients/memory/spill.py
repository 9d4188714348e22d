"""Memories of virtual clients of one process: in RAM as long as they are few, then in a file.

The file has no name, so that it vanishes with the process. It is written by `write`, not through a mapping:
a full disk is then an error with a name, not a crash.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.memory.handshake import Memory, State

IN_MEMORY = 1 << 30  # bytes of all memories that stay in RAM

Entry = tuple[np.dtype[Any], tuple[int, ...], int]  # type, shape and place in the file of an array


class Spilled(NamedTuple):
    """Where a memory lies; the file is that of the `Memories` that made it."""

    file: int
    tag: int
    pending_tag: int
    committed: dict[str, Entry]
    pending: dict[str, Entry] | None

    def read(self) -> Memory:
        """Return the memory."""
        pending = None if self.pending is None else self._state(self.pending)
        return Memory(self._state(self.committed), self.tag, pending, self.pending_tag)

    def _state(self, entries: dict[str, Entry]) -> dict[str, NDArray[Any]]:
        return {name: self._array(*entry) for name, entry in entries.items()}

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], start: int) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        room = array.reshape(-1).view(np.uint8).data
        while room:
            done = os.preadv(self.file, [room], start)
            if not done:
                raise OSError("the file of the clients' memories has been cut off")
            room, start = room[done:], start + done
        return array


class Memories:
    """Puts memories away.

    Parameters
    ----------
    in_memory
        Bytes that stay in RAM.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self.left = in_memory
        self._held: dict[int, int] = {}  # bytes in RAM of each client
        self._room: dict[int, tuple[int, int]] = {}  # start and size of each client's part of the file
        self._end = 0
        self._file: IO[bytes] | None = None

    def keep(self, client: int, memory: Memory) -> Memory | Spilled:
        """Put away what a client remembers from now on; what it remembered before is gone."""
        states = [memory.committed, memory.pending or {}]
        size = sum(array.nbytes for state in states for array in state.values())
        self.left += self._held.pop(client, 0)
        if size <= self.left:
            self._held[client] = size
            self.left -= size
            return memory
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as this object
        start, room = self._room.get(client, (0, -1))
        if room < size:
            start, self._end = self._end, self._end + size
            self._room[client] = start, size
        file = self._file.fileno()
        committed, start = _write(file, memory.committed, start)
        pending = None if memory.pending is None else _write(file, memory.pending, start)[0]
        return Spilled(file, memory.tag, memory.pending_tag, committed, pending)


def _write(file: int, state: State, start: int) -> tuple[dict[str, Entry], int]:
    """Write the arrays of a state one after the other; return where they are, and where the last one ends."""
    entries: dict[str, Entry] = {}
    try:
        for name, array in state.items():
            entries[name] = (array.dtype, array.shape, start)
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while content:
                done = os.pwrite(file, content, start)
                content, start = content[done:], start + done
    except OSError as error:
        where = tempfile.gettempdir()
        message = f"{error.strerror} while putting away what clients remember; free space or set TMPDIR"
        raise OSError(error.errno, message, where) from error
    return entries, start
