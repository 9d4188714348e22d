"""The virtual clock: rounds of fixed duration over recorded sessions, so that work takes time."""

from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, NotNegative, Positive, checked
from traces.base import RoundAvailability, SeededTrace
from traces.recorded.replay import Replay
from traces.recorded.sessions import DeviceLog

_GUARD = 1e-6  # steps; covers the rounding of products such as 0.1 steps per second times 30 s
_WINDOW = 16  # rounds whose sessions are looked up together


class VirtualClock(SeededTrace):
    """Devices that work while they are online and return what they have finished by the deadline.

    Round t starts at ``begin + (t - 1) round_seconds``. A client that is online at that moment can be
    selected. From then on it has

    - with `stop`, the time until it leaves or the deadline passes, whichever comes first;
    - with `pause`, all the time it is online before the deadline: it resumes when it comes back.

    The last part of this time goes into the upload, the rest into local steps. A device that leaves thus
    returns what it has finished: an interrupted upload can be resumed, and a device that stops being idle or
    charging can still send. Its completion is ``min(1, floor(speed (time - upload)) / E)``; 0, a dropout
    mid-round, if it does not finish a single step. Speed and upload rate are those of the session in which
    the round starts.

    With `late`, the deadline ends no work: a client continues until it is done or, with `stop`, leaves, and
    its reply is late by the rounds whose deadlines have passed by then. Meanwhile it gets no new task.

    Parameters
    ----------
    seed
        Draws devices, and speeds that are not recorded.
    file
        The recordings.
    round_seconds
        Seconds from the start of a round to the start of the next.
    deadline
        Seconds after the start of a round by which replies must arrive; 0: the end of the round.
    begin
        Seconds from the start of the earliest recording to the start of round 1.
    repeat
        Whether a device's recording starts over at its end; otherwise the device stays offline.
    on_interrupt
        What happens when a client leaves, see above.
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
    """

    name: ClassVar[str]
    """The trace's name, for messages."""

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
    ) -> None:
        super().__init__(num_clients, seed)
        if deadline > round_seconds:
            raise ValueError(
                f"trace {self.name}: deadline is {deadline:g}; it must be at most round-seconds, "
                f"{round_seconds:g}, or 0 for the end of the round"
            )
        self._round_seconds, self._deadline, self._begin = round_seconds, deadline or round_seconds, begin
        self._pause, self._partial, self._steps = on_interrupt == "pause", partial, local_steps
        self.has_late_replies = late
        log, device = self._read_log(file)
        if log.names:
            self.devices = tuple(log.names[d] if d < len(log.names) else "" for d in device)
        self._replay = Replay(log, device, repeat, _WINDOW * round_seconds)
        median = speed or local_steps / self._deadline
        drawn = median * np.exp(spread * self.rng("clock-speed", 0).standard_normal(num_clients))
        # Of each session: steps per second, and seconds that an upload takes.
        self._speed = np.where(np.isnan(log.speed), drawn[self._replay.client], log.speed) / cost
        self._upload: NDArray[np.float64] | None = None
        if upload_bytes:
            self._upload = upload_bytes / np.where(np.isnan(log.up_rate), np.inf, log.up_rate)

    @abstractmethod
    def _read_log(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Return the devices' sessions, and the device that each client replays, shape (N,)."""

    def _draw_devices(self, log: DeviceLog) -> NDArray[np.intp]:
        """Draw a device for each client, no device twice, shape (N,); ValueError if there are too few."""
        if self.num_clients > log.num_devices:
            raise ValueError(
                f"trace {self.name}: {self.num_clients} clients for {log.num_devices} devices, "
                "use fewer clients or a file with more devices"
            )
        devices = self.rng(self.name, 0).permutation(log.num_devices)
        return np.asarray(devices[: self.num_clients])

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds that have passed when round t ends (see `Trace.seconds`)."""
        return t * self._round_seconds

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        clients, fraction, _ = self._work(t)
        online, completion = np.zeros(self.num_clients, np.bool_), np.zeros(self.num_clients, np.float32)
        online[clients] = True
        completion[clients] = fraction if self._partial else fraction == 1
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies are late (see `Trace.late`)."""
        late = np.zeros(self.num_clients, np.int32)
        if self.has_late_replies:
            clients, _, seconds = self._work(t)
            after = np.ceil((seconds - self._deadline) / self._round_seconds - _GUARD)
            late[clients] = np.clip(after, 0, np.iinfo(np.int32).max)
        return late

    def _work(self, t: int) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return who is online at the start of round t, and what each of these K clients finishes.

        That is the fraction of its steps, and the seconds from the start of the round to its reply.
        """
        now = self._begin + (t - 1) * self._round_seconds
        session, until_leaving = self._replay.online(now)
        clients, speed = self._replay.client[session], self._speed[session]
        upload = np.zeros(len(session)) if self._upload is None else self._upload[session]
        whole = self._steps / speed + upload  # what the whole task takes
        if self.has_late_replies:
            time = np.full(len(session), np.inf) if self._pause else until_leaving
        else:
            time = np.minimum(until_leaving, self._deadline)
            if self._pause:
                cut = np.flatnonzero(time < self._deadline)
                time[cut] = self._replay.seconds_online(now, now + self._deadline, clients[cut])
        fraction = np.minimum(np.floor(speed * np.maximum(time - upload, 0) + _GUARD) / self._steps, 1)
        seconds = np.minimum(time, whole)
        if self._pause and self.has_late_replies:
            seconds = self._replay.moment_after(now, whole, clients) - now
            fraction[np.isinf(seconds)] = 0
        return clients, fraction, seconds
