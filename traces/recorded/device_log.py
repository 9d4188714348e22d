"""Device logs, the format of this project: when each client was online, and how fast it was."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError, why
from traces.files.clients import Clients
from traces.files.lines import alike, finite_number
from traces.files.tables import INSTEAD, Block, Row, Table
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
    seconds,
)
from traces.recorded.recording import Recording

REQUIRED, OPTIONAL = (
    ("client", "start", "end"),
    ("steps_per_second", "up_bytes_per_second", "down_bytes_per_second"),
)
ALIASES = {"device_id": "device", "start_time": "start", "end_time": "end"}
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)"
    r"(?: ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?",
    re.ASCII | re.IGNORECASE,
)
_TIME = "seconds or a time such as 2026-03-01T08:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Recorded(Recording, name="recorded"):
    """Clients that replay a device log on a virtual clock (see `Recording`).

    The file has a session per line, as CSV or JSON lines (see `read_device_log`): client or device, start and
    end. Clients are 0..N-1; devices with names are the data's clients of the same names or, where these have
    none, become clients in order of first appearance.
    """

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        log = read_device_log("trace recorded", self.file, self.num_clients, self._names)
        return log, np.arange(self.num_clients)


def read_device_log(reader: str, path: str, num_clients: int, client_names: Sequence[str] = ()) -> DeviceLog:
    """Read a device log: ``client,start,end``, and up to three rates (`OPTIONAL`).

    The file is a `traces.files.tables.Table`: the columns may come in another order and among others. Times
    may be those of the calendar (`traces.recorded.device_log.parse_timestamp`), and a column ``device`` may
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
        files = (file for file in Path(path).iterdir() if not file.name.startswith("."))
        found = sorted(str(file) for file in files if file.suffix in (".csv", ".jsonl"))
    except OSError as error:
        raise SettingsError(f"{reader}: {path} cannot be read: {why(error)}") from None
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


class FleetLog:
    """Converts the lines of one log, whose files agree on how clients and times are written."""

    def __init__(self, clients: Clients) -> None:
        self.clients, self._kind = clients, ""

    @property
    def dated(self) -> bool:
        """Whether times are of the calendar."""
        return self._kind == "timestamps"

    def shown(self, time: float) -> str:
        """Show a time in messages."""
        return show_timestamp(time) if self.dated else seconds(time)

    def session(self, place: str, row: Row) -> tuple[float, ...]:
        """Return client, start, end and the rates; an end that is missing is `OPEN`.

        The client is what `Clients.read` returns.
        """
        if "start" not in row:
            raise SettingsError(f"{place}: start is missing, give {_TIME}")
        start = self._time(place, row["start"])
        end = self._time(place, row["end"]) if "end" in row else OPEN
        rates = (np.nan if name not in row else finite_number(place, row[name]) for name in OPTIONAL)
        return self.clients.read(place, row), start, end, *rates

    def _time(self, place: str, text: str) -> float:
        if (time := parse_timestamp(text)) is not None:
            self._kind = alike(place, "times", self._kind, "timestamps")
            return time
        try:
            time = finite_number(place, text)
        except ValueError as error:
            raise SettingsError(f"{error}, give {_TIME}") from None
        self._kind = alike(place, "times", self._kind, "seconds")
        return time


def parse_timestamp(text: str) -> float | None:
    """Return the seconds since 1970 of a time in ISO 8601; None if it is not one.

    Date and time are separated by a T or a space; seconds and their decimals may be left out. The time zone
    is Z, UTC or an offset such as +01:00; a time without one is in UTC.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    zone = (match[3] or "Z").upper()
    try:
        time = datetime.fromisoformat(f"{match[1]}T{match[2]}{'Z' if zone == 'UTC' else zone}")
    except ValueError:  # such as February 30
        return None
    return (time - _EPOCH).total_seconds()


def show_timestamp(seconds: float) -> str:
    """Show a time of the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.13g} s since 1970"
