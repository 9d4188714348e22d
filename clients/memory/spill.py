"""Memories of the virtual clients of one process: in RAM up to a limit, the others in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from clients.memory.handshake import ClientState, Memory
from fedtide.base.spill import SpillFile

RAM_LIMIT = 1 << 30  # bytes of all memories that are kept in RAM

Entry = tuple[np.dtype[Any], tuple[int, ...], int]  # type, shape and position in the file of an array


class Spilled(NamedTuple):
    """A memory in the file of a `Memories` object: its tags, and where the arrays of its states are."""

    file: SpillFile
    tag: int
    pending_tag: int
    committed: dict[str, Entry]
    pending: dict[str, Entry] | None

    def read(self) -> Memory:
        """Read the memory from the file."""
        pending = None if self.pending is None else self._state(self.pending)
        return Memory(self._state(self.committed), self.tag, pending, self.pending_tag)

    def _state(self, entries: dict[str, Entry]) -> ClientState:
        return {name: self.file.read(*entry) for name, entry in entries.items()}


class Memories:
    """Stores the newest memory of each client, up to `ram_limit` bytes of all in RAM."""

    def __init__(self, ram_limit: int = RAM_LIMIT) -> None:
        self._ram_left = ram_limit
        self._in_ram: dict[int, int] = {}  # bytes of each client
        self._in_file: dict[int, tuple[int, int]] = {}  # start and capacity of each client's part of the file
        self._end = 0
        self._file: SpillFile | None = None

    def store(self, client: int, memory: Memory) -> Memory | Spilled:
        """Store a client's memory over the one before; return it, or where it is in the file.

        An OSError says that the disk is full.
        """
        states = [memory.committed, memory.pending or {}]
        size = sum(array.nbytes for state in states for array in state.values())
        self._ram_left += self._in_ram.pop(client, 0)
        if size <= self._ram_left:
            self._in_ram[client] = size
            self._ram_left -= size
            return memory
        if self._file is None:
            self._file = SpillFile("the memories of clients")
        start, capacity = self._in_file.get(client, (0, -1))
        if capacity < size:
            start, self._end = self._end, self._end + size
            self._in_file[client] = start, size
        committed, start = _write(self._file, memory.committed, start)
        pending = None if memory.pending is None else _write(self._file, memory.pending, start)[0]
        return Spilled(self._file, memory.tag, memory.pending_tag, committed, pending)


def _write(file: SpillFile, state: ClientState, start: int) -> tuple[dict[str, Entry], int]:
    """Write the arrays of a state one after the other; return where they are, and the end of the last one."""
    entries: dict[str, Entry] = {}
    for name, array in state.items():
        entries[name] = (array.dtype, array.shape, start)
        start = file.write(array, start)
    return entries, start
