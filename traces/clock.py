"""The virtual clock: rounds of a fixed duration over recorded sessions, so that work takes time."""

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round
from traces.device_log import DeviceLog, read_device_log
from traces.seeded import SeededTrace, check_at_least

_GUARD = 1e-6  # steps; covers the rounding of products such as 0.1 steps a second for 30 s


class VirtualClock(SeededTrace):
    """Devices that work while they are online and hand in what they have finished by the deadline.

    Round t begins at ``begin + (t - 1) round_seconds``. A client is online, and can be selected, if it is
    online at that moment. From then on it has

    - with `stop`, the time until it leaves or the deadline comes, whichever is first;
    - with `pause`, all the time in which it is online before the deadline: it goes on when it comes back.

    The last part of that time goes into the upload, the rest into steps. So a device that leaves hands in
    what it has finished: an upload that is interrupted goes on, and a device that stops being idle or on
    mains can still send. Its completion is ``min(1, floor(speed (time - upload)) / E)``; 0, a drop in
    mid-round, where not one step gets finished. Speed and upload rate are those of the session in which the
    round begins.

    Parameters
    ----------
    num_clients : int
        N.
    seed : int
        Seed of the speeds that are drawn.
    file : str
        The record.
    round_seconds : float
        Seconds from the beginning of a round to that of the next.
    deadline : float
        Seconds after the beginning of a round by which replies must be there; 0: when the round ends.
    begin : float
        Seconds from the beginning of the record to that of round 1.
    repeat : bool
        Whether a device's record begins anew when it is over; else the device stays away.
    on_interrupt : str
        `stop` or `pause`.
    partial : bool
        Whether a finished part counts; else, as in FedScale, the client has dropped.
    local_steps : int
        E, the steps that a complete client does. The environment sets it to the run's --local-steps.
    speed : float
        Steps a second where the record does not say: the median over clients. 0: a client that is there all
        the time is ready just in time for the deadline, so that its completion is the share of time online.
    spread : float
        Standard deviation of the logarithm of those speeds, which are log-normal; 0: all clients alike.
    cost : float
        How many times as much work a step is as in the record (a larger model, say): every speed is divided
        by it.
    upload_bytes : float
        Size of a reply; it takes no time where the record knows no upload rate.

    Raises
    ------
    ValueError
        If an option is out of range or the file cannot be read.
    """

    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        file: str = "",
        round_seconds: float = 600.0,
        deadline: float = 0.0,
        begin: float = 0.0,
        repeat: bool = True,
        on_interrupt: str = "stop",
        partial: bool = True,
        local_steps: int = 10,
        speed: float = 0.0,
        spread: float = 0.0,
        cost: float = 1.0,
        upload_bytes: float = 0.0,
    ) -> None:
        super().__init__(num_clients, seed)
        if not round_seconds > 0:
            raise ValueError(f"trace: round-seconds is {round_seconds:g}, give a positive number")
        if not 0 <= deadline <= round_seconds:
            raise ValueError(
                f"trace: deadline is {deadline:g}, give seconds up to round-seconds ({round_seconds:g})"
            )
        if on_interrupt not in ("stop", "pause"):
            raise ValueError(f"trace: on-interrupt is {on_interrupt!r}, give stop or pause")
        if not cost > 0:
            raise ValueError(f"trace: cost is {cost:g}, give a positive number")
        check_at_least("on a clock", "local-steps", local_steps, 1)
        for name, value in (
            ("begin", begin),
            ("speed", speed),
            ("spread", spread),
            ("upload-bytes", upload_bytes),
        ):
            check_at_least("on a clock", name, value, 0)
        self._round_seconds, self._deadline = round_seconds, deadline or round_seconds
        self._repeat, self._pause, self._partial = repeat, on_interrupt == "pause", partial
        self._steps = local_steps
        log, device = self._load(file)
        self._log, self._low, self._high = log, log.first[device], log.first[device + 1]
        self._origin, self._cycle = log.origin[device], log.cycle[device]
        self._begin = log.origin.min() + begin
        last = np.concatenate([[0.0], log.before + log.end - log.start])  # for devices without sessions
        self._total = np.where(self._high > self._low, last[self._high], 0.0)  # seconds online in a cycle
        if not speed:
            speed = local_steps / self._deadline
        factor = np.exp(spread * self.rng("clock-speed", 0).standard_normal(num_clients))
        self._speed, self._cost, self._upload_bytes = speed * factor, cost, upload_bytes

    @abstractmethod
    def _load(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Return the record, and which of its devices each client is, shape (N,)."""

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds that have passed when round t ends (see `Trace.seconds`)."""
        check_round(t)
        return t * self._round_seconds

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        log = self._log
        now = np.full(self.num_clients, self._begin + (t - 1) * self._round_seconds)
        cycles = self._cycles(now)
        clock = now - cycles * self._cycle  # as the device's record has it
        session = self._session(clock)
        online = session >= self._low
        online[online] = clock[online] < log.end[session[online]]
        who, session = np.flatnonzero(online), session[online]
        if self._pause:
            time = (self._online_until(now + self._deadline) - self._online_until(now))[who]
        else:
            time = np.minimum(log.leave[session] - clock[who], self._deadline)
        speed, up_rate = log.speed[session], log.up_rate[session]
        upload = self._upload_bytes / np.where(np.isnan(up_rate), np.inf, up_rate)
        speed = np.where(np.isnan(speed), self._speed[who], speed) / self._cost
        done = np.floor(speed * np.maximum(time - upload, 0) + _GUARD)
        share = np.minimum(done / self._steps, 1)
        completion = np.zeros(self.num_clients, np.float32)
        completion[who] = share if self._partial else share == 1
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)

    def _cycles(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
        """How often each device's record has begun anew before `now`, shape (N,)."""
        if not self._repeat:
            return np.zeros(self.num_clients)
        return np.asarray(np.maximum(np.floor((now - self._origin) / self._cycle), 0))

    def _session(self, clock: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return each client's last session that has begun, shape (N,); below its first one if none has.

        A bisection for all clients at once: nothing is remembered from round to round.
        """
        low, high = self._low.copy(), self._high.copy()
        while (searching := np.flatnonzero(low < high)).size:
            middle = (low[searching] + high[searching]) // 2
            begun = self._log.start[middle] <= clock[searching]
            low[searching[begun]] = middle[begun] + 1
            high[searching[~begun]] = middle[~begun]
        return np.asarray(low - 1)

    def _online_until(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds that each client was online from the beginning of its record until `now`, shape (N,)."""
        cycles = self._cycles(now)
        clock = now - cycles * self._cycle
        session = self._session(clock)
        begun = session >= self._low
        s = session[begun]
        inside = np.minimum(clock[begun], self._log.end[s]) - self._log.start[s]
        seconds = cycles * self._total
        seconds[begun] += self._log.before[s] + inside
        return seconds


class Recorded(VirtualClock):
    """Clients that replay a device log, on a virtual clock (see `VirtualClock`).

    The file holds client,start,end[,steps_per_second[,up_bytes_per_second]], times in seconds, as CSV or JSON
    lines (see `traces.device_log`). Its clients are 0..N-1.
    """

    def _load(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the device log; client k is device k."""
        return read_device_log("trace recorded", file, self.num_clients), np.arange(self.num_clients)
