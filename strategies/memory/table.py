"""One vector for each client, kept by the server: the memory of MIFA, FedLaAvg and MimiC.

N clients times M parameters need not fit into RAM. A client that was never heard of has no row, rows are
made as clients appear, and beyond a size they lie in a file that is mapped into memory where it is read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from strategies.core.options import Options, choose
from strategies.core.parameters import Layout
from strategies.core.replies import Replies
from strategies.core.state import State, Stateful, take

Clients = NDArray[np.intp]
Rows = NDArray[np.floating[Any]]

_BLOCK = 1 << 22  # numbers that are changed in a file at a time


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

    table_dtype: str = "auto"
    table_memory: float = 1.0
    table_folder: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("table-dtype", self.table_dtype, ("auto", "float32", "float64"))
        if not self.table_memory >= 0:
            raise ValueError(f"table-memory is {self.table_memory}; it cannot be negative")


ALL = slice(None)
Change = Callable[[slice, NDArray[np.float64], Rows], NDArray[Any]]


class ClientTable(Stateful):
    """Rows of M numbers by client; that of a client without one reads as zeros.

    Parameters
    ----------
    layout
        Layout of the weights, which gives M.
    options
        Type of the numbers and where they are kept.

    Attributes
    ----------
    clients
        The clients with a row, in the order of their rows.
    """

    def __init__(self, layout: Layout, options: TableOptions) -> None:
        precise = options.table_dtype == "float64" or (
            options.table_dtype == "auto" and layout.dtype.itemsize > 4
        )
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if precise else np.float32)
        self.width = layout.size
        self.clients: Clients = np.empty(0, np.intp)
        self._capacity = options.table_memory * 2**30
        self._folder = options.table_folder or None
        self._row: Clients = np.empty(0, np.intp)  # row of each client, -1 without one
        self._in_memory: Rows = np.empty((0, self.width), self.dtype)
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, client: int) -> bool:
        return client < len(self._row) and bool(self._row[client] >= 0)

    @property
    def rows(self) -> Rows:
        """All rows, in the order of `clients`: a view that holds until the table changes, shape (len, M)."""
        if self._file is None or not len(self):
            return self._in_memory[: len(self)]
        # Mapped anew each time: pages of a mapping that stays would count as memory of this process.
        return np.memmap(self._file, self.dtype, "r", shape=(len(self), self.width))

    def read(self, clients: Clients, columns: slice = ALL) -> Rows:
        """Copy the rows of clients, or some columns of them; zeros where there is none."""
        at = self._rows_of(clients)
        found = at >= 0
        if found.all():
            return np.asarray(self.rows[at, columns])
        rows = np.zeros((len(clients), self.width), self.dtype)[:, columns]
        rows[found] = self.rows[at[found], columns]
        return rows

    def write(self, clients: Clients, rows: NDArray[Any]) -> None:
        """Overwrite the rows of clients, making those that are missing.

        Raises
        ------
        OSError
            The folder is full.
        """
        self._admit(clients[self._rows_of(clients) < 0])
        self._write(clients, rows, ALL)

    def change(self, replies: Replies, new: Change) -> None:
        """Overwrite the rows of those who replied, some columns at a time.

        Parameters
        ----------
        replies
            Replies of a round.
        new
            Makes what replaces some columns of the rows: of these columns, of the deltas, which it may
            overwrite, and of the rows, which are zeros for a client without one.
        """
        clients = replies.clients
        before = clients[self._rows_of(clients) < 0]
        self._admit(before)
        if len(before):
            self._write(before, np.broadcast_to(self.dtype.type(0), (len(before), self.width)), ALL)

        def work(columns: slice, deltas: NDArray[np.float64]) -> None:
            self._write(clients, new(columns, deltas, self.read(clients, columns)), columns)

        if self._file is None:
            replies.by_columns(work)
        else:
            replies.by_columns(work, _BLOCK)

    def drop(self, client: int) -> Rows:
        """Forget a client; the row that it had, shape (M,)."""
        row: Rows = self.read(np.array([client]))[0]
        if client in self:
            hole, last = self._row[client], int(self.clients[-1])
            if client != last:  # the last row moves up, so that the table has no holes
                self.write(np.array([client]), self.read(np.array([last])))
            self._row[last], self._row[client] = hole, -1
            self.clients[hole] = last
            self.clients = self.clients[:-1]
        return row

    def state_dict(self) -> State:
        """Return the clients and a view of their rows."""
        return {"clients": self.clients.copy(), "rows": self.rows}

    def load_state_dict(self, state: State) -> None:
        """Take over clients and rows, a few at a time: they may be mapped from a file."""
        clients, rows = take(state, "clients"), take(state, "rows")
        if rows.shape != (len(clients), self.width):
            raise ValueError(
                f"a table of shape {rows.shape} where ({len(clients)}, {self.width}) is expected"
            )
        self.clients, self._row = np.empty(0, np.intp), np.empty(0, np.intp)
        for row, client in enumerate(clients.tolist()):
            self.write(np.array([client]), rows[row : row + 1])

    def _rows_of(self, clients: Clients) -> Clients:
        """Where the rows of clients are, -1 for those without one."""
        at = np.full(len(clients), -1)
        known = clients < len(self._row)
        at[known] = self._row[clients[known]]
        return at

    def _admit(self, new: Clients) -> None:
        """Make room for the rows of clients that have none."""
        if not len(new):
            return
        count = len(self)
        self._row = extend(self._row, int(new.max()) + 1, -1)
        self._row[new] = np.arange(count, count + len(new))
        self.clients = np.concatenate([self.clients, new])
        if self._file is not None or len(self) <= len(self._in_memory):
            return
        most = int(self._capacity / max(1, self.width * self.dtype.itemsize))
        old = self._in_memory[:count]
        if len(self) <= most:
            room = min(max(len(self), 2 * count), most)
            self._in_memory = np.empty((room, self.width), self.dtype)
            self._in_memory[:count] = old
        else:
            if self._folder:
                os.makedirs(self._folder, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115, lives as long as the table
            self._in_memory = np.empty((0, self.width), self.dtype)
            self._write(self.clients[:count], old, ALL)

    def _write(self, clients: Clients, rows: NDArray[Any], columns: slice) -> None:
        """Overwrite some columns of rows that there are."""
        if self._file is None:
            self._in_memory[self._row[clients], columns] = rows
            return
        # By `write`: through a mapping, a full disk would kill the process instead of raising.
        first, file = columns.start or 0, self._file.fileno()
        try:
            for position, row in zip(self._row[clients].tolist(), rows, strict=True):
                content = np.ascontiguousarray(row, self.dtype).data.cast("B")
                at = (position * self.width + first) * self.dtype.itemsize
                while content:
                    done = os.pwrite(file, content, at)
                    content, at = content[done:], at + done
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            message = f"{error.strerror} while writing the clients' vectors; free space or set table-folder"
            raise OSError(error.errno, message, folder) from error


class SummedTable(ClientTable):
    """A table of the clients' latest vectors that always knows their sum.

    No part of the sum is an orphan, see `strategies.memory.client_memory.LatestSum`.

    Attributes
    ----------
    total
        Sum of all rows in float64, shape (M,), kept up to date by differences: a round costs as much as the
        clients that take part in it, not as all of them.
    """

    orphans = 0

    def __init__(self, layout: Layout, options: TableOptions) -> None:
        super().__init__(layout, options)
        self.total = np.zeros(self.width)

    def replace(self, replies: Replies, factors: NDArray[np.float64]) -> None:
        """row_k := factors_k delta_k; total += new - old (FedLaAvg, Algorithm 1, line 9)."""

        def replaced(columns: slice, deltas: NDArray[np.float64], old: Rows) -> Rows:
            deltas *= factors[:, None]
            new: Rows = deltas.astype(self.dtype)  # as it is kept, so that the sum is that of the rows
            np.subtract(new, old, out=deltas, dtype=np.float64)
            self.total[columns] += np.ones(len(deltas)) @ deltas
            return new

        self.change(replies, replaced)

    def drop(self, client: int) -> Rows:
        """Forget a client, in the sum too."""
        row = super().drop(client)
        self.total = self.total - row if len(self) else np.zeros(self.width)  # no rounding errors stay
        return row

    def state_dict(self) -> State:
        """Return the clients, a view of their rows, and the sum, whose rounding depends on the past."""
        return {**super().state_dict(), "total": self.total.copy()}

    def load_state_dict(self, state: State) -> None:
        """Take over clients, rows and sum."""
        super().load_state_dict(state)
        self.total = np.array(take(state, "total"), np.float64)


def extend(array: NDArray[Any], size: int, fill: int) -> NDArray[Any]:
    """Lengthen an array to at least `size`, ahead of need, so that arrivals one by one stay cheap."""
    if size <= len(array):
        return array
    more = np.full(max(size, 2 * len(array)) - len(array), fill, array.dtype)
    return np.concatenate([array, more])
