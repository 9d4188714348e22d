"""Device logs, the format of this project: when each client was online, and how fast it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from traces.files.clients import Clients
from traces.files.tables import INSTEAD, Block, Table
from traces.recorded.fleet_log import ALIASES, OPTIONAL, REQUIRED, FleetLog
from traces.recorded.log import (
    FASTEST,
    LATEST,
    OPEN,
    SHORTEST,
    SLOWEST,
    DeviceLog,
    RawSessions,
    check_rate,
    check_session,
)
from traces.recorded.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Recorded(Recording, name="recorded"):
    """Clients that replay a device log on a virtual clock (see `Recording`).

    The file has a session per line, as CSV or JSON lines (see `read_device_log`): client or device, start and
    end. Clients are 0..N-1; devices with names are the data's clients of the same names or, where these have
    none, become clients in order of first appearance.
    """

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the device log; client k is device k."""
        log = read_device_log("trace recorded", self.file, self.num_clients, self._names)
        return log, np.arange(self.num_clients)


def read_device_log(reader: str, path: str, num_clients: int, client_names: Sequence[str] = ()) -> DeviceLog:
    """Read a device log: ``client,start,end[,steps_per_second[,up_bytes_per_second]]``.

    The file is a `traces.files.tables.Table`: these columns may come in another order and among others. Times
    may be those of the calendar (`traces.recorded.fleet_log.parse_timestamp`), and a column ``device`` may
    have names instead of numbers: see `traces.files.clients.Clients`, which gets `client_names`. In folders,
    devices appear file by file. A log writes all its clients alike, and all its times.

    A client that is not in the file is never online. The recordings of all clients begin at the first and end
    at the last time in the file; a session without an end goes on until then.

    `path` is the file; or a folder, whose *.csv and *.jsonl files are read as one. Anything else is a
    ValueError, whose message begins with `reader` and names file and line.
    """
    found: list[Block] = []
    files: list[tuple[int, str]] = []  # number of sessions before each file
    clients = Clients(reader, num_clients, client_names)
    fleet = FleetLog(clients)
    for file in _log_files(reader, path):
        files.append((sum(len(block.lines) for block in found), file))
        table = Table(reader, file, REQUIRED, OPTIONAL, INSTEAD, ALIASES)
        for block in table.blocks(fleet.session):
            valid = _valid(block.values, clients.most)
            if not valid.all():
                i = int(np.argmin(valid))
                _check_line(f"{reader}: {file}, line {block.lines[i]}", block.values[i].tolist(), fleet)
            found.append(block)
    if not found:
        raise SettingsError(f"{reader}: {path}: no sessions found, write one per line")
    lines, values = (np.concatenate(parts) for parts in zip(*found, strict=True))

    def place_of(i: int) -> str:
        file = max(entry for entry in files if entry[0] <= i)[1]
        return f"{reader}: {file}, line {lines[i]}"

    start, end = values[:, 1], values[:, 2]
    is_open = end == OPEN
    begin, finish = start.min(), max(start.max(), end.max(where=~is_open, initial=0))
    end[is_open] = finish
    if finish - begin < SHORTEST or not (start < end).any():
        raise SettingsError(f"{reader}: {path}: no session has an end after its start, give at least one")
    client = clients.found(path, values[:, 0])
    rows = np.flatnonzero(client >= 0)
    if len(rows) < len(client):
        client, values = client[rows], values[rows]
    sessions = RawSessions(client, *values[:, 1:].T)
    return DeviceLog.build(
        sessions,
        np.full(num_clients, begin),
        np.full(num_clients, finish),
        lambda i: place_of(int(rows[i])),
        clients.names,
        fleet.dated,
        fleet.shown,
    )


def _log_files(reader: str, path: str) -> list[str]:
    """Return the path itself, or the logs in it if it is a folder, in order of their names."""
    if not path or not os.path.isdir(path):
        return [path]
    try:
        found = sorted(str(file) for file in Path(path).iterdir() if file.suffix in (".csv", ".jsonl"))
    except OSError as error:
        raise SettingsError(f"{reader}: {path} cannot be read: {error.strerror}") from None
    if not found:
        raise SettingsError(
            f"{reader}: {path}: the folder has no .csv or .jsonl files, give the folder of the logs"
        )
    return found


def _valid(values: NDArray[np.float64], num_clients: float) -> NDArray[np.bool_]:
    """Return which lines of a block `_check_line` does not refuse."""
    client, start, end, *rates = values.T
    valid = (client >= 0) & (client < num_clients) & (client == np.floor(client))
    valid &= (start >= 0) & ((end - start >= SHORTEST) | (start == end))
    valid &= np.where(end == OPEN, start, end) <= LATEST
    for rate in rates:
        valid &= np.isnan(rate) | ((rate >= SLOWEST) & (rate <= FASTEST))
    return np.asarray(valid)


def _check_line(place: str, values: list[float], fleet: FleetLog) -> None:
    """Raise ValueError for the first invalid value of a line."""
    client, start, end, *rates = values
    fleet.clients.check(place, client)
    check_session(place, start, end, fleet.shown)
    for name, value in zip(OPTIONAL, rates, strict=True):
        check_rate(place, name, value)
