"""Device logs: when each device was online, and how fast it was."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces.files.columns import read_columns
from traces.files.rows import client_index


class Sessions(NamedTuple):
    """Stretches of time in which devices were online, one an entry, in any order.

    Attributes
    ----------
    device : (S,) int
        Whose session it is, 0..D-1.
    start, end : (S,) float
        Seconds; the device is online from `start` on, and no more at `end`.
    speed : (S,) float
        Local steps a second; NaN where it is not known.
    up_rate : (S,) float
        Upload in bytes a second; NaN where it is not known.
    """

    device: ArrayLike
    start: ArrayLike
    end: ArrayLike
    speed: ArrayLike
    up_rate: ArrayLike


@dataclass(frozen=True)
class DeviceLog:
    """The sessions of D devices, those of device d at first[d]:first[d + 1], in the order of time.

    Attributes
    ----------
    first : (D + 1,) int64
        Where the sessions of a device begin.
    start, end, speed, up_rate : (S,) float64
        See `Sessions`.
    leave : (S,) float64
        End of the last of the sessions that follow each other without a gap: when the device really leaves.
    before : (S,) float64
        Seconds that the device was online before the session.
    origin, cycle : (D,) float64
        Time at which the device's record begins, and its length; all in seconds.
    """

    first: NDArray[np.int64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    speed: NDArray[np.float64]
    up_rate: NDArray[np.float64]
    leave: NDArray[np.float64]
    before: NDArray[np.float64]
    origin: NDArray[np.float64]
    cycle: NDArray[np.float64]

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.origin)

    @classmethod
    def build(
        cls,
        sessions: Sessions,
        origin: NDArray[np.float64],
        cycle: NDArray[np.float64],
        place: Callable[[int], str],
    ) -> DeviceLog:
        """Put sessions in order.

        Parameters
        ----------
        sessions : Sessions
            Each with ``start < end``.
        origin, cycle : (D,) float64
            See `DeviceLog`.
        place : callable
            Where session i was found, for messages.

        Raises
        ------
        ValueError
            If two sessions of one device overlap.
        """
        device = np.asarray(sessions.device, np.int64)
        order = np.lexsort((np.asarray(sessions.start, np.float64), device))
        device = device[order]
        start, end, speed, up_rate = (np.asarray(x, np.float64)[order] for x in sessions[1:])
        same = device[1:] == device[:-1]
        overlap = np.flatnonzero(same & (start[1:] < end[:-1]))
        if len(overlap):
            i = int(overlap[0])
            raise ValueError(
                f"{place(int(order[i + 1]))}: the session from {start[i + 1]:.13g} s begins before the "
                f"device's session from {start[i]:.13g} to {end[i]:.13g} s is over, let sessions not overlap"
            )
        goes_on = np.append(same & (start[1:] == end[:-1]), False)
        stops = np.flatnonzero(~goes_on)
        leave = end[stops[np.searchsorted(stops, np.arange(len(end)))]]
        first = np.searchsorted(device, np.arange(len(origin) + 1))
        total = np.concatenate([[0.0], np.cumsum(end - start)])[:-1]
        before = total - total[np.minimum(first[device], max(len(total) - 1, 0))]
        return cls(first, start, end, speed, up_rate, leave, before, origin, cycle)


def read_device_log(where: str, path: str, num_clients: int) -> DeviceLog:
    """Read a device log: ``client,start,end[,steps_per_second[,up_bytes_per_second]]``.

    A client that is not in the file is never online. The record of all clients begins with the first start
    and ends with the last end of the file.

    Parameters
    ----------
    where : str
        What reads the file, for messages.
    path : str
        The file; or a folder, whose files *.csv and *.jsonl are read as if they were one.
    num_clients : int
        N; clients are numbered 0..N-1.

    Raises
    ------
    ValueError
        If a file cannot be read, a client does not exist, a time is negative, a session ends before it
        begins or overlaps another one of the client, a speed is not positive, or there is no session. The
        message names file and line.
    """
    lines, device = array("q"), array("q")
    numbers = tuple(array("d") for _ in range(4))
    begun: list[tuple[int, str]] = []  # of each file the number of sessions before it
    for file in _files(where, path):
        begun.append((len(lines), file))
        for line, values in read_columns(
            where, file, ("client", "start", "end"), ("steps_per_second", "up_bytes_per_second")
        ):
            client, start, end, speed, up_rate = values.T
            right = (client >= 0) & (client < num_clients) & (client == np.floor(client))
            right &= (start >= 0) & (start < end) & ~(speed <= 0) & ~(up_rate <= 0)
            if not right.all():
                i = int(np.argmin(right))
                _check(f"{where}: {file}, line {line[i]}", values[i].tolist(), num_clients)
            lines.frombytes(line.tobytes())
            device.frombytes(client.astype(np.int64).tobytes())
            for column, new in zip(numbers, values.T[1:], strict=True):
                column.frombytes(new.tobytes())
    if not lines:
        raise ValueError(f"{where}: {path}: there are no sessions, write one a line")

    def place(i: int) -> str:
        file = max(entry for entry in begun if entry[0] <= i)[1]
        return f"{where}: {file}, line {lines[i]}"

    begin, finish = np.min(numbers[0]), np.max(numbers[1])
    return DeviceLog.build(
        Sessions(device, *numbers),
        np.full(num_clients, begin),
        np.full(num_clients, finish - begin),
        place,
    )


def _files(where: str, path: str) -> list[str]:
    """Return the path itself, or the logs in it if it is a folder."""
    if not path or not os.path.isdir(path):
        return [path]
    found = sorted(str(file) for file in Path(path).iterdir() if file.suffix in (".csv", ".jsonl"))
    if not found:
        raise ValueError(f"{where}: {path}: the folder has no .csv or .jsonl, name the folder of the logs")
    return found


def _check(place: str, values: list[float], num_clients: int) -> None:
    """Raise ValueError, naming the place, for what is wrong with a session."""
    client, start, end, *rates = values
    client_index(place, client, num_clients)
    check_session(place, start, end)
    for name, value in zip(("steps_per_second", "up_bytes_per_second"), rates, strict=True):
        if value <= 0:
            raise ValueError(f"{place}: {name} is {value:g}, give a positive number or leave it out")


def check_session(place: str, start: float, end: float) -> None:
    """Raise ValueError, naming the place, unless 0 <= start < end."""
    if start < 0:
        raise ValueError(f"{place}: the session begins at {start:.13g} s, give times from 0 on")
    if not start < end:
        raise ValueError(
            f"{place}: the session begins at {start:.13g} s but ends at {end:.13g} s, end it later"
        )
