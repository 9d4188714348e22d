"""Sessions of devices: when each device was online, and how fast it was."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtide.base.errors import SettingsError
from fedtide.base.wording import count
from traces.base import SECOND, Moments, microseconds

# What a recording may hold, so that sums, products and quotients of it are numbers.
SHORTEST, LATEST = 1e-6, 1e11  # seconds; today in milliseconds since 1970 is above that
SLOWEST, FASTEST = 1e-12, 1e15  # per second
OPEN = math.inf  # the end of a session that is not over when the recording ends


def seconds(time: float) -> str:
    """Show a time in seconds."""
    return f"{time:.13g} s"


class RawSessions(NamedTuple):
    """Intervals in which devices 0..D-1 were online, in any order; six arrays of shape (S,).

    A device is online from `start` until just before `end`, in seconds. Its `speed` are local steps,
    `up_rate` and `down_rate` bytes per second, to the server and from it; NaN if unknown.
    """

    device: ArrayLike
    start: ArrayLike
    end: ArrayLike
    speed: ArrayLike = np.nan
    up_rate: ArrayLike = np.nan
    down_rate: ArrayLike = np.nan


@dataclass(frozen=True)
class DeviceLog:
    """The recordings of D devices; device d has the sessions first[d]:first[d + 1], in order of time."""

    first: NDArray[np.int64]  # index of the first session of each device, and S: shape (D + 1,)
    start: Moments  # this and the next five: shape (S,); see `RawSessions`
    end: Moments
    speed: NDArray[np.float64]
    up_rate: NDArray[np.float64]
    down_rate: NDArray[np.float64]
    leave: Moments  # when the device goes offline, after the sessions that follow without a gap
    origin: Moments  # start of each device's recording, shape (D,)
    cycle: Moments  # its length, likewise
    names: tuple[str, ...] = ()  # of the devices, "" for one without; () if none has one
    dated: bool = False  # whether times are seconds since 1970

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.origin)

    @property
    def online(self) -> NDArray[np.float64]:
        """The share of its recording for which each device is online, shape (D,)."""
        total = np.append(0, np.cumsum(self.end - self.start))[self.first]
        return np.asarray(np.diff(total) / self.cycle)

    @classmethod
    def build(
        cls,
        sessions: RawSessions,
        begin: NDArray[np.float64],
        finish: NDArray[np.float64],
        place: Callable[[int], str],
        names: tuple[str, ...] = (),
        dated: bool = False,
        shown: Callable[[float], str] = seconds,
    ) -> DeviceLog:
        """Sort sessions by device and time; those of zero seconds are left out.

        Sessions of one device that overlap are joined, with a warning: the device is online from the first
        start to the last end, at the speed and the rates of the session that started last and has them.
        `place` returns the source of session i, and `shown` a time in seconds, for the warning. `begin` and
        `finish` are those of each device's recording, in seconds, shape (D,).
        """
        device = np.asarray(sessions.device, np.int64)
        order = np.lexsort((np.asarray(sessions.start, np.float64), device))
        device = device[order]
        start, end = (microseconds(x)[order] for x in sessions[1:3])
        rates = [np.broadcast_to(np.asarray(x, np.float64), len(order))[order] for x in sessions[3:]]
        same = device[1:] == device[:-1]
        if (same & (start[1:] < end[:-1])).any():
            latest = _latest_end(device, end)
            overlap = same & (start[1:] < latest[:-1])
            i = int(np.argmax(overlap))
            warnings.warn(
                f"{place(int(order[i + 1]))}: the session from {shown(start[i + 1] / SECOND)} overlaps the "
                f"device's session from {shown(start[i] / SECOND)} to {shown(end[i] / SECOND)}; "
                f"{count(int(overlap.sum()), 'session')} joined with those before",
                stacklevel=2,
            )
            end = np.append(np.where(overlap, start[1:], latest[:-1]), latest[-1])
            rates = [_inherited(rate, np.append(False, overlap)) for rate in rates]
        if not (lasting := start < end).all():
            device, start, end = device[lasting], start[lasting], end[lasting]
            rates = [rate[lasting] for rate in rates]
            same = device[1:] == device[:-1]
        speed, up_rate, down_rate = rates
        continued = np.append(same & (start[1:] == end[:-1]), False)
        stops = np.flatnonzero(~continued)
        leave = end[stops[np.searchsorted(stops, np.arange(len(end)))]]
        first = np.searchsorted(device, np.arange(len(begin) + 1))
        origin = microseconds(begin)
        cycle = np.maximum(microseconds(finish) - origin, 1)
        return cls(first, start, end, speed, up_rate, down_rate, leave, origin, cycle, names, dated)

    def with_silent_device(self) -> DeviceLog:
        """Return the log with one more device, the last, which is never online."""
        one_more = {"first": self.first, "origin": self.origin, "cycle": self.cycle}
        extended: dict[str, Any] = {name: np.append(array, array[-1]) for name, array in one_more.items()}
        return replace(self, **extended, names=(*self.names, ""))


def _latest_end(device: NDArray[np.int64], end: Moments) -> Moments:
    """Return the latest end of each session and of those before it of the same device, shape (S,).

    The devices are sorted.
    """
    order = np.argsort(end)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(end))
    offset = device * len(end)  # ranks of a later device are larger than all before
    latest: Moments = end[order[np.maximum.accumulate(rank + offset) - offset]]
    return latest


def _inherited(rates: NDArray[np.float64], overlap: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Let sessions without a rate that overlap the one before have its rate."""
    own = np.where(np.isnan(rates) & overlap, 0, np.arange(len(rates)))
    return rates[np.maximum.accumulate(own)]


def check_session(place: str, start: float, end: float, shown: Callable[[float], str] = seconds) -> None:
    """Raise ValueError unless a session starts and ends at possible times.

    Its end may be `OPEN`, or its start: `DeviceLog.build` leaves such a session out.
    """
    if start < 0:
        raise SettingsError(
            f"{place}: the session starts at {shown(start)}, give times of {shown(0)} or later"
        )
    if end < start:
        raise SettingsError(
            f"{place}: the session starts at {shown(start)} but ends at {shown(end)}, it must end later"
        )
    if 0 < end - start < SHORTEST:
        raise SettingsError(
            f"{place}: the session lasts {end - start:g} s, give sessions of at least {SHORTEST:g} s"
        )
    if (last := start if end == OPEN else end) > LATEST:
        most = f"give seconds, not milliseconds, and times of at most {shown(LATEST)}"
        raise SettingsError(f"{place}: {shown(last)} is too late, {most}")


def check_rate(place: str, name: str, value: float) -> None:
    """Raise ValueError unless a speed or a rate of bytes is possible; NaN is."""
    if value <= 0:
        raise SettingsError(f"{place}: {name} is {value:g}, give a positive number or nothing")
    if not math.isnan(value) and not SLOWEST <= value <= FASTEST:
        raise SettingsError(f"{place}: {name} is {value:g}, give a number from {SLOWEST:g} to {FASTEST:g}")
