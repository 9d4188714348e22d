"""Logs as fleets write them: devices by name, times of the calendar, columns in any order."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from traces.files.blocks import Block
from traces.files.columns import Row, read_columns
from traces.files.lines import (
    MAX_LINE_BYTES,
    finite_number,
    json_object,
    open_data,
    shorten,
    whole_number,
)
from traces.recorded.sessions import seconds

REQUIRED, OPTIONAL = (("device", "client"), ("start",), ("end",)), ("steps_per_second", "up_bytes_per_second")
ALIASES = {"device_id": "device", "start_time": "start", "end_time": "end"}
BLOCK_LINES = 10_000
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)"
    r"(?: ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?",
    re.ASCII | re.IGNORECASE,
)
_TIME = "seconds or a time such as 2026-03-01T08:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FleetLog:
    """Reads the files of one log, which agree on how clients and times are written.

    Attributes
    ----------
    devices : dict of str to int
        Device -> client, in order of first appearance; empty where the log numbers the clients.
    """

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}
        self._kinds: dict[str, str] = {}

    def shown(self, time: float) -> str:
        """Show a time in messages."""
        return show_timestamp(time) if self._kinds.get("times") == "timestamps" else seconds(time)

    def note_plain(self, place: str) -> None:
        """Note that a file numbers its clients and counts seconds."""
        self._note(place, "clients", "numbers")
        self._note(place, "times", "seconds")

    def _note(self, place: str, what: str, kind: str) -> None:
        """Note how the log writes its clients or times; raise ValueError if it did so differently before."""
        if self._kinds.setdefault(what, kind) != kind:
            raise ValueError(
                f"{place}: the {what} are {kind}, but {self._kinds[what]} before; write all of them alike"
            )

    def read(self, reader: str, path: str) -> Iterator[Block]:
        """Read a file; the columns of a block are client, start, end, speed and upload rate.

        Raises
        ------
        ValueError
            If the file cannot be read or is not such a log; the message names file and line.
        """
        numbers: list[int] = []
        values: list[tuple[float, ...]] = []
        failure = None
        try:
            for number, row in read_columns(reader, path, REQUIRED, OPTIONAL, ALIASES):
                values.append(self._session(f"{reader}: {path}, line {number}", row))
                numbers.append(number)
                if len(values) == BLOCK_LINES:
                    yield Block(np.array(numbers), np.array(values))
                    numbers, values = [], []
        except ValueError as error:
            failure = error  # the lines before it come first, as one of them may be invalid, too
        if values:
            yield Block(np.array(numbers), np.array(values))
        if failure is not None:
            raise failure

    def _session(self, place: str, row: Row) -> tuple[float, ...]:
        rates = (np.nan if name not in row else finite_number(place, row[name]) for name in OPTIONAL)
        return self._client(place, row), *self._times(place, row), *rates

    def _client(self, place: str, row: Row) -> int:
        if "device" in row:
            if "client" in row:
                raise ValueError(f"{place}: give a device or a client, not both")
            self._note(place, "clients", "names of devices")
            return self.devices.setdefault(row["device"], len(self.devices))
        if "client" not in row:
            raise ValueError(f"{place}: device is missing, give its name; or its number as client")
        self._note(place, "clients", "numbers")
        try:
            value = finite_number(place, row["client"])
        except ValueError:
            raise ValueError(
                f"{place}: client is {shorten(row['client'])}, give its number; names have a column device"
            ) from None
        return whole_number(place, "client", value, 0)

    def _times(self, place: str, row: Row) -> tuple[float, float]:
        for name in ("start", "end"):
            if name not in row:
                raise ValueError(f"{place}: {name} is missing, give {_TIME}")
        return self._time(place, row["start"]), self._time(place, row["end"])

    def _time(self, place: str, text: str) -> float:
        time, kind = parse_timestamp(text), "timestamps"
        if time is None:
            try:
                time, kind = finite_number(place, text), "seconds"
            except ValueError as error:
                raise ValueError(f"{error}, give {_TIME}") from None
        self._note(place, "times", kind)
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
    """Show a time in messages."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.13g} s since 1970"


def is_fleet_log(reader: str, path: str, plain: tuple[str, ...]) -> bool:
    """Whether a file needs `FleetLog`: by its header, or by its first line of values.

    It has other columns than the plain ones, or in another order, or what is in them is not a number. Empty
    files and objects of JSON that cannot be parsed are left to the reader of plain logs.
    """
    lines = _first_lines(reader, path)
    if not lines:
        return False
    if lines[0].startswith("{"):
        try:
            content = json_object("", lines[0], plain)
        except ValueError:
            return False
        return not content.keys() <= set(plain) or any(isinstance(value, str) for value in content.values())
    names = tuple(name.strip() for name in lines[0].split(","))
    if len(names) < 3 or names != plain[: len(names)]:
        return True
    fields = ",".join(lines[1:]).replace('"', "").split(",")
    return any(field.strip() and not _is_number(field) for field in fields[:3])


def _is_number(text: str) -> bool:
    try:
        finite_number("", text)
    except ValueError:
        return False
    return True


def _first_lines(reader: str, path: str) -> list[str]:
    """Return at most two lines, without blank ones and comments."""
    found: list[str] = []
    with open_data(reader, path) as file:
        while len(found) < 2 and (raw := file.readline(MAX_LINE_BYTES)):
            text = raw.decode("utf-8-sig", errors="replace").strip()
            if text and not text.startswith("#"):
                found.append(text)
    return found
