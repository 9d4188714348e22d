"""One vector for each client, kept by the server: the memory of MIFA, FedLaAvg, MimiC and SCAFFOLD.

N clients times M parameters need not fit into RAM. Rows exist only for clients that took part, and beyond a
size they lie in a file that is mapped into memory where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import NotNegative
from fedtide.base.errors import SettingsError
from fedtide.base.spill import SpillFile
from strategies.core.options import Options
from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.roster import Clients
from strategies.core.state import Rows, StateDict, Stateful, extend, take

Vectors = NDArray[np.floating[Any]]
Block = NDArray[np.float64]

_BLOCK = 1 << 22  # numbers that are changed in a file at a time
ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class TableOptions(Options):
    """Options of methods that keep a vector for each client.

    Attributes
    ----------
    table_dtype
        Type of the table: `float32`, `float64`, or `auto`, the model's own.
    table_memory
        Size in GiB up to which the table is in RAM; beyond it is in a file.
    table_folder
        Folder of that file, which vanishes with the process; default: the system's temporary folder.
    """

    table_dtype: Literal["auto", "float32", "float64"] = "auto"
    table_memory: NotNegative = 1.0
    table_folder: str = ""


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(TableOptions):
    """Options of methods whose memory can be at the server or at the clients.

    Attributes
    ----------
    memory
        `server` keeps a vector for each client, and clients keep nothing. `client` has the clients of this
        project keep them: the server needs hardly any memory, and the sum of the uploads is all that it uses.
        Who leaves the objective is asked for its vector, once; if it does not answer, its part stays.
    """

    memory: Literal["server", "client"] = "server"


class ClientTable(Stateful):
    """A vector of M numbers per client; that of a client without one reads as zeros."""

    def __init__(self, layout: Layout, options: TableOptions) -> None:
        precise = options.table_dtype == "float64" or (
            options.table_dtype == "auto" and layout.dtype.itemsize > 4
        )
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if precise else np.float32)
        self.width = layout.size
        self.clients: Clients = np.empty(0, np.intp)  # those with a row, in the order of their rows
        self._capacity = options.table_memory * 2**30
        self._folder = options.table_folder
        self._row: Clients = np.empty(0, np.intp)  # row of each client, -1 without one
        self._versions = np.empty(0, np.int64)  # of each row: how many changes there had been with its last
        self._changes = 0
        self._in_memory: Vectors = np.empty((0, self.width), self.dtype)
        self._file: SpillFile | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, client: int) -> bool:
        return client < len(self._row) and bool(self._row[client] >= 0)

    @property
    def rows(self) -> Vectors:
        """All rows, in the order of `clients`: a view that holds until the table changes, shape (len, M)."""
        if self._file is None or not len(self):
            return self._in_memory[: len(self)]
        return self._file.view(self.dtype, (len(self), self.width))

    def read(self, clients: Clients, columns: slice = ALL) -> Vectors:
        """Copy the vectors of clients, or some columns of them; zeros where there is none."""
        at = self._rows_of(clients)
        found = at >= 0
        if found.all():
            return np.asarray(self.rows[at, columns])
        vectors = np.zeros((len(clients), self.width), self.dtype)[:, columns]
        vectors[found] = self.rows[at[found], columns]
        return vectors

    def write(self, clients: Clients, vectors: NDArray[Any]) -> None:
        """Overwrite the vectors of clients, adding rows for those that have none; OSError on a full disk."""
        self._add(clients[self._rows_of(clients) < 0])
        self._write(clients, vectors, ALL)

    def blocks(self, replies: Replies) -> Iterator[tuple[slice, Block, Block]]:
        """Yield some columns at a time, with the deltas of a round and the vectors of those who replied.

        Both have shape (K, columns). The deltas may be overwritten, as in `Replies.blocks`; what the loop
        leaves in the vectors is written back, and rounded to the type of the table.
        """
        clients = replies.clients
        new = clients[self._rows_of(clients) < 0]
        self._add(new)
        if len(new):
            self._write(new, np.broadcast_to(self.dtype.type(0), (len(new), self.width)), ALL)
        at, buffer = self._rows_of(clients), np.empty(0)
        for columns, deltas in replies.blocks() if self._file is None else replies.blocks(_BLOCK):
            buffer = buffer if len(buffer) >= deltas.size else np.empty(deltas.size)
            vectors = buffer[: deltas.size].reshape(deltas.shape)
            vectors[:] = self.rows[at, columns]
            yield columns, deltas, vectors
            self._write(clients, vectors, columns)

    def drop(self, client: int) -> Vectors:
        """Forget a client; return the vector that it had, shape (M,)."""
        vector: Vectors = self.read(np.array([client]))[0]
        if client in self:
            hole, last = self._row[client], int(self.clients[-1])
            if client != last:  # the last row moves up, so that the table has no holes
                self._write(np.array([client]), self.read(np.array([last])), ALL)
            self._row[last], self._row[client] = hole, -1
            self.clients[hole] = last
            self.clients, self._versions = self.clients[:-1], self._versions[:-1]
        return vector

    def state_dict(self) -> StateDict:
        """Return a view of the rows, by client."""
        return {"rows": Rows(self.clients.copy(), self._versions.copy(), self.rows), "changes": self._changes}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the rows, one at a time: they may come from a file."""
        clients, versions, rows = take(state, "rows")
        self.clients, self._row = np.empty(0, np.intp), np.empty(0, np.intp)
        self._versions = np.empty(0, np.int64)
        for client, row in zip(clients.tolist(), rows, strict=True):
            if row.shape != (self.width,):
                raise SettingsError(
                    f"a table with {row.size} numbers for each client where {self.width} are expected"
                )
            self.write(np.array([client]), row[None])
        self._versions, self._changes = np.array(versions, np.int64), take(state, "changes")

    def _rows_of(self, clients: Clients) -> Clients:
        """Where the rows of clients are, -1 for those without one."""
        at = np.full(len(clients), -1)
        known = clients < len(self._row)
        at[known] = self._row[clients[known]]
        return at

    def _add(self, new: Clients) -> None:
        """Make room for the rows of clients that have none."""
        if not len(new):
            return
        count = len(self)
        self._row = extend(self._row, int(new.max()) + 1, -1)
        self._row[new] = np.arange(count, count + len(new))
        self.clients = np.concatenate([self.clients, new])
        self._versions = np.concatenate([self._versions, np.full(len(new), self._changes)])
        if self._file is not None or len(self) <= len(self._in_memory):
            return
        most = int(self._capacity / max(1, self.width * self.dtype.itemsize))
        old = self._in_memory[:count]
        if len(self) <= most:
            capacity = min(max(len(self), 2 * count), most)
            self._in_memory = np.empty((capacity, self.width), self.dtype)
            self._in_memory[:count] = old
        else:
            self._file = SpillFile("the clients' vectors", self._folder, "set table-folder")
            self._in_memory = np.empty((0, self.width), self.dtype)
            self._write(self.clients[:count], old, ALL)

    def _write(self, clients: Clients, vectors: NDArray[Any], columns: slice) -> None:
        """Overwrite some columns of rows that exist."""
        self._changes += 1
        self._versions[self._row[clients]] = self._changes
        if self._file is None:
            self._in_memory[self._row[clients], columns] = vectors
            return
        first = columns.start or 0
        for position, vector in zip(self._row[clients].tolist(), vectors, strict=True):
            start = (position * self.width + first) * self.dtype.itemsize
            self._file.write(np.asarray(vector, self.dtype), start)


class SummedTable(ClientTable):
    """A table of the clients' latest vectors that always knows their sum.

    It is kept up to date by differences: a round costs as much as the clients that take part in it.
    """

    def __init__(self, layout: Layout, options: TableOptions) -> None:
        super().__init__(layout, options)
        self.total = np.zeros(self.width)  # in float64

    def replace(self, replies: Replies, factors: NDArray[np.float64]) -> None:
        """Set the vector of each client that replied to factors_k delta_k."""
        per_delta = factors[:, None]
        for _, delta, vector in self.blocks(replies):
            np.multiply(delta, per_delta, out=vector)

    def blocks(self, replies: Replies) -> Iterator[tuple[slice, Block, Block]]:
        each = np.ones(len(replies))
        for columns, deltas, vectors in super().blocks(replies):
            self.total[columns] -= each @ vectors
            yield columns, deltas, vectors
            if vectors.dtype != self.dtype:  # the sum is that of the rows as they are stored
                vectors[:] = vectors.astype(self.dtype)
            self.total[columns] += each @ vectors

    def write(self, clients: Clients, vectors: NDArray[Any]) -> None:
        self.total -= self.read(clients).sum(axis=0, dtype=np.float64)
        super().write(clients, vectors)
        self.total += self.read(clients).sum(axis=0, dtype=np.float64)

    def drop(self, client: int) -> Vectors:
        """Forget a client, in the sum too; nothing changes if it has no vector."""
        known, vector = client in self, super().drop(client)
        if known:
            self.total = self.total - vector if len(self) else np.zeros(self.width)  # no rounding errors stay
        return vector

    def state_dict(self) -> StateDict:
        """Return a view of the rows, and the sum, whose rounding depends on the past."""
        return {**super().state_dict(), "total": self.total.copy()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.total = np.array(take(state, "total"), np.float64)
