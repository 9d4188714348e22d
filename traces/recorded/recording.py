"""Recorded sessions on the virtual clock, during which work takes time."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import NotNegative, Positive
from fedtide.base.errors import SettingsError
from traces.base import SECOND, microseconds
from traces.clock import TimedTrace
from traces.files.clients import match
from traces.recorded.log import DeviceLog
from traces.sessions import Online, RecordedSessions

_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Recording(TimedTrace):
    """Devices that replay recordings, and work while they are online (see `TimedTrace`).

    Attributes
    ----------
    file
        The recordings.
    begin
        Seconds from the start of the earliest recording to the start of round 1.
    repeat
        Whether a device's recording starts over at its end; otherwise the device stays offline.
    cost
        Work per step relative to the recording (larger for a larger model): every speed is divided by it.
    upload_bytes, download_bytes
        Sizes of a reply, and of the model that comes with a task; M weights have 4 M bytes. Either takes no
        time where the recording has no rate for that direction.
    by_name
        Whether devices are the clients of the same names, where the data name their clients.
    client_names
        The data's names of the clients, N or none.
    """

    file: str = ""
    begin: NotNegative = 0.0
    repeat: bool = True
    cost: Positive = 1.0
    upload_bytes: NotNegative = 0.0
    download_bytes: NotNegative = 0.0
    by_name: bool = True
    client_names: Sequence[str] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sessions  # reads the file

    @abstractmethod
    def read(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Return the devices' sessions, and the device that each client replays, shape (N,)."""

    @cached_property
    def _recorded(self) -> tuple[DeviceLog, NDArray[np.intp]]:
        return self.read()

    @cached_property
    def sessions(self) -> RecordedSessions:
        return RecordedSessions(*self._recorded, self.repeat)

    @cached_property
    def devices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the clients or, where they have none, of their devices (see `Trace`)."""
        log, device = self._recorded
        return tuple(self._names or (log.names[d] for d in device.tolist())) if log.names else ()

    @cached_property
    def dates(self) -> tuple[float, float] | None:  # type: ignore[override]
        """The times of the calendar at virtual time 0 and at the end of the recording (see `Trace`)."""
        log, _ = self._recorded
        first = float(log.origin[0]) / SECOND
        return (first + self.begin, first + float(log.cycle[0]) / SECOND) if log.dated else None

    @property
    def repeats_after(self) -> float:
        """A day: whose device is idle or charging goes by day and night (see `Trace.repeats_after`)."""
        return _DAY / self.round_seconds

    @property
    def start(self) -> int:
        return int(microseconds(self.begin))

    def rates(self, t: int, there: Online) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        log, session = self._recorded[0], there.session
        seconds = np.nan_to_num(self.upload_bytes / log.up_rate[session])
        return log.speed[session], seconds + np.nan_to_num(self.download_bytes / log.down_rate[session])

    def _speed(self, t: int, recorded: NDArray[np.float64], clients: NDArray[np.intp]) -> NDArray[np.float64]:
        return super()._speed(t, recorded, clients) / self.cost

    @property
    def _names(self) -> Sequence[str]:
        """The data's names of the clients, as far as devices are to be matched with them."""
        return self.client_names if self.by_name else ()


@dataclass(frozen=True, kw_only=True)
class DrawnRecording(Recording):
    """A recording of more devices than there are clients, which draw theirs by the seed.

    Attributes
    ----------
    stratum
        The N devices that N clients draw from, by the share of its recording for which a device is online:
        those with the largest shares (`most`), the middle ones (`median`) or those with the smallest
        (`rarest`). Devices that are never online are in no stratum. `any`: all devices.
    """

    stratum: Literal["any", "most", "median", "rarest"] = "any"

    def assign_devices(self, log: DeviceLog) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Give each client a device, no device twice, shape (N,): that of its name, or one that is drawn.

        Devices that are all numbered have no names. ValueError: there are too few.
        """
        if self._names and log.names:
            if self.stratum != "any":
                raise SettingsError(
                    f"trace {self.name}: stratum is {self.stratum}, but devices are the clients of the same "
                    "names; set by-name=false to draw them"
                )
            client = match(f"trace {self.name}: {self.file}", log.names, self._names)
            device = np.full(self.num_clients, log.num_devices)  # one that is never online
            device[client[client >= 0]] = np.flatnonzero(client >= 0)
            return log.with_silent_device(), device
        devices = self._stratum(log)
        if self.num_clients > len(devices):
            ever = "" if self.stratum == "any" else " that are ever online"
            raise SettingsError(
                f"trace {self.name}: {self.num_clients} clients for {len(devices)} devices{ever}, "
                "use fewer clients or a file with more devices"
            )
        return log, self.rng(self.name, 0).permutation(devices)[: self.num_clients]

    def _stratum(self, log: DeviceLog) -> NDArray[np.intp]:
        """Return the devices that clients draw from, in order of the file."""
        if self.stratum == "any":
            return np.arange(log.num_devices)
        share = log.online
        ranked = np.argsort(-share, kind="stable")[: np.count_nonzero(share)]
        more = max(len(ranked) - self.num_clients, 0)
        first = {"most": 0, "median": more // 2, "rarest": more}[self.stratum]
        return np.sort(ranked[first : first + self.num_clients])
