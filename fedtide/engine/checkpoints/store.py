"""The checkpoints of a run in one SQLite file: the last two, each saved in one transaction."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.files import arrays_in
from strategies.core.state import Rows, StateDict, Vectors

FILE = "states.sqlite"
EARLIER = ("round-*.safetensors", "checkpoints.sqlite")  # files of earlier versions
VALUES = "JSON values"  # the name of all that is not an array
KEYS, VERSIONS = "keys of ", "versions of "  # followed by the name of the `Rows`
STATE = "state"  # the name of packed states in the table
PLACE = "name = ? AND key = ? AND version = ?"
PIECE = 1 << 26  # bytes in one row of the table at most, which SQLite copies
# Large pages, as most vectors take megabytes; a page that is freed is not overwritten first.
SETUP = """
PRAGMA page_size = 65536;
PRAGMA secure_delete = OFF;
CREATE TABLE IF NOT EXISTS vectors (
    name TEXT, key INTEGER, version INTEGER, piece INTEGER, dtype TEXT, checksum INTEGER, data BLOB,
    PRIMARY KEY (name, key, version, piece)
);
"""


class Found(NamedTuple):
    """A checkpoint that was read."""

    round: int
    state: StateDict
    damaged: list[str]  # why newer ones could not be used


class CheckpointStore:
    """Saves states after rounds, and finds the newest that is undamaged.

    A checkpoint writes its state and those vectors of `Rows` that have changed since the one before. `save`
    creates the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: sqlite3.Connection | None = None
        self._newest: dict[str, Rows] = {}  # of the newest checkpoint, without vectors
        self._unused: list[tuple[str, int, int]] = []  # name, key and version of what it does not need

    def save(self, server_round: int, state: StateDict) -> None:
        """Save a state; checkpoints older than the one before it are deleted.

        OSError: it cannot be written, and the newest checkpoint is unharmed. ValueError, TypeError: it
        contains what cannot be saved.
        """
        parts = {name: part for name, part in state.items() if isinstance(part, Rows)}
        parts[STATE] = _row(server_round, [_pack(state)])
        with self._transaction() as db:  # of its own: space that it frees can be written without a journal
            db.executescript(SETUP)
            db.executemany(f"DELETE FROM vectors WHERE {PLACE}", self._unused)
        self._unused = []
        with self._transaction() as db:
            for name, part in parts.items():
                positions = changed(part, self._newest.get(name))
                for place, position in zip(_places(name, part, positions), positions.tolist(), strict=True):
                    _write(db, place, part.vectors[position])
        for name, before in self._newest.items():
            self._unused += _places(name, before, changed(before, parts.get(name)))
        self._newest = {name: part._replace(vectors=()) for name, part in parts.items()}

    def to_write(self, state: StateDict) -> int:
        """Return about how many bytes `save` would write."""
        return num_bytes(state, self._newest)

    def load(self, check: Callable[[StateDict], None] = lambda state: None) -> Found | None:
        """Return the newest undamaged checkpoint; None if there is none at all.

        `check` raises ValueError for a state that cannot be used. Nothing is written; the next `save` deletes
        the others. OSError: the file cannot be read. ValueError: all checkpoints are damaged, or of an
        earlier version.
        """
        if not (self.folder / FILE).exists():
            if any([*self.folder.glob(name)] for name in EARLIER):
                raise SettingsError(
                    f"{self.folder} was written by an earlier version, which can still resume it"
                )
            return None
        damaged: list[str] = []
        with self._transaction() as db:
            if not db.execute("PRAGMA page_count").fetchone()[0]:  # killed before the first save
                return None
            query = "SELECT DISTINCT key FROM vectors WHERE name = ? ORDER BY key DESC"
            for (server_round,) in db.execute(query, (STATE,)).fetchall():
                try:
                    state = self._state(db, server_round)
                    check(state)
                except (ValueError, sqlite3.DatabaseError) as reason:
                    damaged.append(f"the checkpoint of round {server_round} is damaged: {reason}")
                    continue
                parts = {n: p._replace(vectors=()) for n, p in state.items() if isinstance(p, Rows)}
                self._newest = {**parts, STATE: _row(server_round)}
                used = {place for name, part in self._newest.items() for place in _places(name, part)}
                stored = {*db.execute("SELECT name, key, version FROM vectors")}
                self._unused = [*stored - used]
                return Found(server_round, state, damaged)
            (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":  # there may have been some
                raise sqlite3.DatabaseError(" ".join(verdict.split()))
        if damaged:
            raise SettingsError(f"{self.folder}: {'; '.join(damaged)}")
        return None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the file for what is written or read together; SQLite's errors become those of the system."""
        try:
            if self._opened is None:
                self.folder.mkdir(exist_ok=True)
                self._opened = sqlite3.connect(self.folder / FILE)
            with self._opened:
                yield self._opened
        except sqlite3.Error as error:
            raise OSError(f"{self.folder / FILE}: {error}") from error

    def _state(self, db: sqlite3.Connection, server_round: int) -> StateDict:
        """Read a state, and check all of its vectors, which are read again when they are used."""
        state = _unpack(_read(db, (STATE, server_round, 0)))
        for name in [key.removeprefix(KEYS) for key in state if key.startswith(KEYS)]:
            keys, versions = state.pop(KEYS + name), state.pop(VERSIONS + name)
            places = _places(name, Rows(keys, versions, ()))
            vectors = Vectors(len(places), partial(_vector, db, places))
            for _ in vectors:
                pass
            state[name] = Rows(keys, versions, vectors)
        return state


def num_bytes(state: StateDict, before: Mapping[str, Rows] = MappingProxyType({})) -> int:
    """Return about how many bytes the arrays of a state have, without rows that were there before."""
    total = 0
    for name, part in state.items():
        if isinstance(part, Rows):
            positions = changed(part, before.get(name))
            total += len(positions) * part.vectors[int(positions[0])].nbytes if len(positions) else 0
        elif isinstance(part, np.ndarray):
            total += part.nbytes
    return total


def changed(rows: Rows, other: Rows | None) -> NDArray[np.intp]:
    """Return the positions of those rows that another state does not have in the same version."""
    if other is None or not len(other.keys):
        return np.arange(len(rows.keys))
    order = np.argsort(other.keys)
    at = order[np.minimum(np.searchsorted(other.keys, rows.keys, sorter=order), len(order) - 1)]
    return np.flatnonzero((other.keys[at] != rows.keys) | (other.versions[at] != rows.versions))


def _row(server_round: int, data: Sequence[NDArray[np.uint8]] = ()) -> Rows:
    """Return a state, packed or without its content, as an entry of the table."""
    return Rows(np.array([server_round]), np.array([0]), data)


def _places(name: str, rows: Rows, positions: Any = slice(None)) -> list[tuple[str, int, int]]:
    """Return the names, keys and versions by which the table has some rows."""
    pairs = zip(rows.keys[positions].tolist(), rows.versions[positions].tolist(), strict=True)
    return [(name, key, version) for key, version in pairs]


def _write(db: sqlite3.Connection, place: tuple[str, int, int], vector: NDArray[Any]) -> None:
    data, dtype = np.ascontiguousarray(vector).view(np.uint8).data, vector.dtype.str
    for number, start in enumerate(range(0, max(1, len(data)), PIECE)):
        piece = data[start : start + PIECE]
        entry = (*place, number, dtype, _checksum(place, number, dtype, len(data), piece), piece)
        db.execute("INSERT INTO vectors VALUES (?, ?, ?, ?, ?, ?, ?)", entry)


def _read(db: sqlite3.Connection, place: tuple[str, int, int]) -> NDArray[Any]:
    query = f"SELECT piece, dtype, checksum, data FROM vectors WHERE {PLACE} ORDER BY piece"
    pieces = db.execute(query, place).fetchall()
    size = sum(len(data) for *_, data in pieces)
    if not pieces or any(
        checksum != _checksum(place, number, dtype, size, data) for number, dtype, checksum, data in pieces
    ):
        raise ValueError(f"its {place[0]} of {place[1]} is missing or was changed")
    return np.frombuffer(b"".join(data for *_, data in pieces), pieces[0][1])


def _checksum(place: tuple[str, int, int], number: int, dtype: str, size: int, piece: Any) -> int:
    """Return the checksum of a piece of a vector of so many bytes, and of where it belongs."""
    return crc32(piece, crc32(repr((*place, number, dtype, size)).encode()))


def _vector(db: sqlite3.Connection, places: list[tuple[str, int, int]], position: int) -> NDArray[Any]:
    return _read(db, places[position])


def _pack(state: StateDict) -> NDArray[np.uint8]:
    """Return a state, of `Rows` their keys and versions only, as bytes.

    ValueError or TypeError: a value is neither an array of numbers or texts nor a JSON value.
    """
    arrays: dict[str, Any] = {}
    values: StateDict = {}
    for name, value in state.items():
        if isinstance(value, Rows):
            arrays[KEYS + name], arrays[VERSIONS + name] = value.keys, value.versions
        elif isinstance(value, np.ndarray):
            arrays[name] = value
        else:
            values[name] = value
    for name, array in arrays.items():
        if array.dtype.kind not in "biufU":
            raise ValueError(f"{name} is an array of type {array.dtype}")
    arrays[VALUES] = np.frombuffer(json.dumps(values, default=_plain).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return np.frombuffer(file.getbuffer(), np.uint8)


def _unpack(data: NDArray[np.uint8]) -> StateDict:
    state: StateDict = arrays_in(io.BytesIO(data.data))
    values: StateDict = json.loads(state.pop(VALUES).tobytes())
    return state | values


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither an array nor a JSON value")
