"""The virtual clock: recorded sessions, during which work takes time."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, NotNegative, Positive, checked
from fedtide.ground.errors import SettingsError
from traces.files.clients import match
from traces.recorded.replay import Replay
from traces.recorded.sessions import DeviceLog
from traces.timed import TimedTrace

_WINDOW = 16  # rounds whose sessions are looked up together


class VirtualClock(TimedTrace):
    """Devices that replay recordings, and work while they are online (see `TimedTrace`).

    Parameters
    ----------
    seed
        Draws devices, and speeds that are not recorded.
    file
        The recordings.
    round_seconds
        Seconds from the start of a round to the start of the next; in event time only for `speed`.
    deadline
        Seconds after the start of a round, or in event time of a task, by which replies must arrive; 0: the
        end of the round, or none.
    begin
        Seconds from the start of the earliest recording to the start of round 1.
    repeat
        Whether a device's recording starts over at its end; otherwise the device stays offline.
    on_interrupt
        What happens when a client leaves, see `TimedTrace`.
    late
        Whether clients continue after the deadline; one that never finishes has dropped out.
    partial
        Whether incomplete work counts; otherwise, as in FedScale, the client has dropped out.
    local_steps
        E, local steps of a complete client; the run's --local-steps unless given.
    speed
        Steps per second where the recording has none: the median over clients. 0: a client that is online
        throughout just meets the deadline, so its completion is the fraction of time it is online.
    spread
        Standard deviation of the logarithm of these speeds, which are log-normal; 0: all clients are equal.
    cost
        Work per step relative to the recording (larger for a larger model): every speed is divided by it.
    upload_bytes
        Size of a reply; uploads take no time where the recording has no upload rate.
    by_name
        Whether devices are the clients of the same names, where the data name their clients.
    client_names
        The data's names of the clients, N or none.
    """

    @checked
    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        file: str = "",
        round_seconds: Positive = 600.0,
        deadline: NotNegative = 0.0,
        begin: NotNegative = 0.0,
        repeat: bool = True,
        on_interrupt: Literal["stop", "pause"] = "stop",
        late: bool = False,
        partial: bool = True,
        local_steps: Count = 10,
        speed: NotNegative = 0.0,
        spread: NotNegative = 0.0,
        cost: Positive = 1.0,
        upload_bytes: NotNegative = 0.0,
        by_name: bool = True,
        client_names: Sequence[str] = (),
    ) -> None:
        super().__init__(
            num_clients,
            seed,
            round_seconds=round_seconds,
            deadline=deadline,
            on_interrupt=on_interrupt,
            late=late,
            partial=partial,
            local_steps=local_steps,
            speed=speed,
            spread=spread,
        )
        self._begin, self._cost = begin, cost
        self._client_names = client_names if by_name else ()
        log, device = self._read_log(file)
        if log.names:
            self.devices = tuple(self._client_names or (log.names[d] for d in device.tolist()))
        self._sessions, self._recorded = Replay(log, device, repeat, _WINDOW * round_seconds), log.speed
        if upload_bytes:
            self._upload = upload_bytes / np.where(np.isnan(log.up_rate), np.inf, log.up_rate)

    @abstractmethod
    def _read_log(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Return the devices' sessions, and the device that each client replays, shape (N,)."""

    def _assign_devices(self, where: str, log: DeviceLog) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Give each client a device, no device twice, shape (N,): that of its name, or one that is drawn.

        Devices that are all numbered have no names. ValueError, which begins with `where`: there are too few.
        """
        if self._client_names and log.names:
            client = match(where, log.names, self._client_names)
            device = np.full(self.num_clients, log.num_devices)  # one that is never online
            device[client[client >= 0]] = np.flatnonzero(client >= 0)
            return log.with_silent_device(), device
        if self.num_clients > log.num_devices:
            raise SettingsError(
                f"trace {self.name}: {self.num_clients} clients for {log.num_devices} devices, "
                "use fewer clients or a file with more devices"
            )
        devices = self.rng(self.name, 0).permutation(log.num_devices)
        return log, np.asarray(devices[: self.num_clients])
