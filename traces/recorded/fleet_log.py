"""Logs as fleets write them: devices by number or by name, times in seconds or of the calendar."""

import re
from datetime import UTC, datetime

import numpy as np

from fedtide.ground.errors import SettingsError
from traces.files.clients import Clients
from traces.files.lines import alike, finite_number
from traces.files.tables import Row
from traces.recorded.log import OPEN, seconds

REQUIRED, OPTIONAL = ("client", "start", "end"), ("steps_per_second", "up_bytes_per_second")
ALIASES = {"device_id": "device", "start_time": "start", "end_time": "end"}
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?)"
    r"(?: ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?))?",
    re.ASCII | re.IGNORECASE,
)
_TIME = "seconds or a time such as 2026-03-01T08:00:00Z"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        """Return client, start, end, speed and upload rate; an end that is missing is `OPEN`.

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
