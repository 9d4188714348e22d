"""Device logs: when each device was online, and how fast it was."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traces.files.blocks import read_blocks
from traces.files.lines import client_index
from traces.recorded.clock import VirtualClock
from traces.recorded.sessions import DeviceLog, Sessions, check_session


class Recorded(VirtualClock):
    """Clients that replay a device log, on a virtual clock (see `VirtualClock`).

    The file holds client,start,end[,steps_per_second[,up_bytes_per_second]], times in seconds, as CSV or JSON
    lines (see `traces.recorded.device_log`). Its clients are 0..N-1.
    """

    name = "recorded"

    def _read_log(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the device log; client k is device k."""
        return read_device_log("trace recorded", file, self.num_clients), np.arange(self.num_clients)


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
        for line, values in read_blocks(
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
        raise ValueError(f"{where}: {path}: no sessions found, write one per line")

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
        raise ValueError(
            f"{where}: {path}: the folder has no .csv or .jsonl files, give the folder of the logs"
        )
    return found


def _check(place: str, values: list[float], num_clients: int) -> None:
    """Raise ValueError, naming the place, for what is wrong with a session."""
    client, start, end, *rates = values
    client_index(place, client, num_clients)
    check_session(place, start, end)
    for name, value in zip(("steps_per_second", "up_bytes_per_second"), rates, strict=True):
        if value <= 0:
            raise ValueError(f"{place}: {name} is {value:g}, give a positive number or leave it out")
