"""FLHetBench's sixteen cases: who is online, of four kinds, and how fast transfers are, of four others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from traces.base import Draws
from traces.files.documents import number, read_document
from traces.recorded.log import DeviceLog, RawSessions, check_rate, check_session
from traces.recorded.recording import Recording
from traces.sessions import Online

_BYTES_PER_KILOBIT = 125
_READER = "trace flhetbench"


@dataclass(frozen=True, kw_only=True)
class FLHetBench(Recording, name="flhetbench"):
    """Clients of FLHetBench (Zhang et al., CVPR 2024) on a virtual clock (see `Recording`): 16 cases of 100.

    Client k is online as the k-th phone of a case of states, of which FLASH recorded when it was locked,
    charging and on Wi-Fi; several clients may have the same phone. Its transfers are as fast as the k-th
    device of a case of devices: for each task, one of the device's measurements by MobiPerf is drawn for the
    download, and one for the upload. There are no speeds of work.

    `file` is the folder of a copy of https://github.com/Carkham/FLHetBench, which has no licence: none of it
    is in this package. All phones share the calendar, in which time 0 is FLHetBench's, 2 January 2020.

    Attributes
    ----------
    device, state
        The cases.
    """

    device: Literal[1, 2, 3, 4] = 1
    state: Literal[1, 2, 3, 4] = 1

    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        _ = self._measured
        timers = str(Path(self.file) / "data" / "cached_timers.json")
        return read_states(_READER, timers, self._case("state")), np.arange(self.num_clients)

    def rates(self, t: int, there: Online) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        speed, _ = super().rates(t, there)
        measured, count = self._measured
        drawn = Draws(self.seed, "flhetbench")
        seconds = np.zeros(len(there.client))
        for direction, size in enumerate((self.download_bytes, self.upload_bytes)):
            uniform = drawn.uniform(there.client, np.full(len(there.client), 2 * t + direction))
            seconds += size / measured[there.client, (uniform * count[there.client]).astype(int)]
        return speed, seconds

    @cached_property
    def _measured(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Bytes per second of each client, in rows, and how many measurements it has."""
        rows = [
            _measurements(f"{self._path('device')}, device {k}", device)
            for k, device in enumerate(self._case("device"))
        ]
        count = np.array([len(row) for row in rows])
        measured = np.full((len(rows), count.max()), np.nan)
        for row, found in zip(measured, rows, strict=True):
            row[: len(found)] = found
        return measured, count

    def _path(self, kind: Literal["device", "state"]) -> str:
        name = f"case{getattr(self, kind)}.json"
        return str(Path(self.file) / "bench" / "cached_sample_data" / kind / name) if self.file else ""

    def _case(self, kind: Literal["device", "state"]) -> list[Any]:
        """Return the entries of a case for the N clients."""
        place = f"{_READER}: {self._path(kind)}"
        entries = read_document(_READER, self._path(kind))
        if not isinstance(entries, list):
            raise SettingsError(f"{place}: not a list, expected a case of FLHetBench")
        if len(entries) < self.num_clients:
            raise SettingsError(f"{place}: {len(entries)} clients, set --num-clients to at most so many")
        return entries[: self.num_clients]


def read_states(reader: str, path: str, phones: Sequence[Any]) -> DeviceLog:
    """Read when phones were online: ``phone -> {trace_start, trace_end, ready_time: [[start, end], ...]}``.

    Recordings start over from time 0 on, each after its own length in whole seconds. Other data are a
    ValueError, whose message begins with `reader` and names file and phone; so is a phone that is missing.
    """
    timers = read_document(reader, path)
    if not isinstance(timers, dict):
        raise SettingsError(f"{reader}: {path}: not a dict of phones, expected cached_timers.json")
    device: list[int] = []
    sessions: list[tuple[float, float]] = []
    cycle: list[float] = []
    places = [f"{reader}: {path}, phone {str(name)[:40]!r}" for name in phones]
    for k, name in enumerate(phones):
        found, length = _phone(places[k], timers.get(str(name)))
        device += [k] * len(found)
        sessions += found
        cycle.append(length)
    if not any(start < end for start, end in sessions):
        raise SettingsError(f"{reader}: {path}: none of the phones is ever online")
    start, end = np.array(sessions).T
    raw = RawSessions(device, start, end)
    return DeviceLog.build(raw, np.zeros(len(cycle)), np.array(cycle), lambda i: places[device[i]])


def _phone(place: str, phone: Any) -> tuple[list[tuple[float, float]], float]:
    """Return a phone's sessions from time 0 on, and the length after which they repeat."""
    if not isinstance(phone, dict) or not isinstance(phone.get("ready_time"), list):
        raise SettingsError(f"{place}: no ready_time, expected FLHetBench's cached_timers.json")
    if not phone["ready_time"]:
        return [], 1.0
    first, last = (number(place, name, phone.get(name)) for name in ("trace_start", "trace_end"))
    check_session(place, first, last)
    length = float(int(last - first))
    if not length:
        raise SettingsError(f"{place}: trace_start is {first:g}, less than a second before trace_end")
    sessions = []
    for session in phone["ready_time"]:
        if not isinstance(session, list) or len(session) != 2:
            raise SettingsError(f"{place}: ready_time has {str(session)[:40]!r}, give pairs of start and end")
        start, end = (number(place, "ready_time", time) for time in session)
        check_session(place, start, end)
        if not first <= start <= end <= last:
            raise SettingsError(f"{place}: a session from {start:g} to {end:g} s is outside of its recording")
        begin = start % length
        end = begin + min(end - start, length)
        sessions += [(begin, min(end, length)), *([(0.0, end - length)] if end > length else [])]
    return sessions, length


def _measurements(place: str, device: Any) -> list[float]:
    """Return the measured bytes per second of a device."""
    speeds = device.get("tcp_speed_results") if isinstance(device, dict) else None
    if not isinstance(speeds, list) or not speeds:
        raise SettingsError(f"{place}: no tcp_speed_results, expected a device of FLHetBench")
    found = [number(place, "tcp_speed_results", speed) * _BYTES_PER_KILOBIT for speed in speeds]
    for rate in found:
        check_rate(place, "tcp_speed_results", rate)
    return found
