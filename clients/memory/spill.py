"""Memories of the virtual clients of one process: in RAM as long as they are few, then in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from clients.memory.handshake import ClientState, Memory
from flexfl.spill import SpillFile

IN_MEMORY = 1 << 30  # bytes of all memories that stay in RAM

Entry = tuple[np.dtype[Any], tuple[int, ...], int]  # type, shape and place in the file of an array


class Spilled(NamedTuple):
    """Where a memory lies in the file of the `Memories` that made it."""

    file: SpillFile
    tag: int
    pending_tag: int
    committed: dict[str, Entry]
    pending: dict[str, Entry] | None

    def read(self) -> Memory:
        """Return the memory."""
        pending = None if self.pending is None else self._state(self.pending)
        return Memory(self._state(self.committed), self.tag, pending, self.pending_tag)

    def _state(self, entries: dict[str, Entry]) -> ClientState:
        return {name: self.file.read(*entry) for name, entry in entries.items()}


class Memories:
    """Stores memories.

    Parameters
    ----------
    in_memory
        Bytes that stay in RAM.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self.left = in_memory
        self._held: dict[int, int] = {}  # bytes in RAM of each client
        self._place: dict[int, tuple[int, int]] = {}  # start and size of each client's part of the file
        self._end = 0
        self._file: SpillFile | None = None

    def store(self, client: int, memory: Memory) -> Memory | Spilled:
        """Store what a client remembers from now on; what it remembered before is gone."""
        states = [memory.committed, memory.pending or {}]
        size = sum(array.nbytes for state in states for array in state.values())
        self.left += self._held.pop(client, 0)
        if size <= self.left:
            self._held[client] = size
            self.left -= size
            return memory
        if self._file is None:
            self._file = SpillFile("what clients remember")
        start, capacity = self._place.get(client, (0, -1))
        if capacity < size:
            start, self._end = self._end, self._end + size
            self._place[client] = start, size
        committed, start = _write(self._file, memory.committed, start)
        pending = None if memory.pending is None else _write(self._file, memory.pending, start)[0]
        return Spilled(self._file, memory.tag, memory.pending_tag, committed, pending)


def _write(file: SpillFile, state: ClientState, start: int) -> tuple[dict[str, Entry], int]:
    """Write the arrays of a state one after the other; return where they are, and where the last one ends."""
    entries: dict[str, Entry] = {}
    for name, array in state.items():
        entries[name] = (array.dtype, array.shape, start)
        start = file.write(array, start)
    return entries, start
