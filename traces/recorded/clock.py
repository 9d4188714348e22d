"""The virtual clock: rounds of a fixed duration over recorded sessions, so that work takes time."""

from abc import abstractmethod
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traces.base import RoundAvailability, check_round
from traces.recorded.device_log import DeviceLog, read_device_log
from traces.seeded import SeededTrace, check_at_least

_GUARD = 1e-6  # steps; covers the rounding of products such as 0.1 steps a second for 30 s
_AROUND = 16  # rounds whose sessions are looked up at a time
_Clients = NDArray[np.int64] | slice


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
        self._low, self._high = log.first[device], log.first[device + 1]
        # Times count from the beginning of each record, so that no rounding opens a gap between two cycles.
        self._begin, self._cycle = begin, log.cycle[device]
        self._delay = (log.origin - log.origin.min())[device]
        owner = np.repeat(np.arange(log.num_devices), np.diff(log.first))  # each session's device
        origin = log.origin[owner]
        self._start, self._end, self._leave = log.start - origin, log.end - origin, log.leave - origin
        if repeat:
            self._join_cycles(log.cycle[owner], log.first[owner])
        self._before = log.before
        last = np.concatenate([[0.0], log.before + log.end - log.start])  # for devices without sessions
        self._total = np.where(self._high > self._low, last[self._high], 0.0)  # seconds online in a cycle
        if not speed:
            speed = local_steps / self._deadline
        factor = np.exp(spread * self.rng("clock-speed", 0).standard_normal(num_clients))
        # Of each session: its client (-1: none has the device), steps a second, seconds of an upload.
        client = np.full(log.num_devices, -1)
        client[device] = np.arange(num_clients)
        self._client = client[owner]
        known = np.where(np.isnan(log.speed), (speed * factor)[self._client], log.speed)
        self._speed = known / cost
        self._upload: NDArray[np.float64] | None = None
        if upload_bytes:
            self._upload = upload_bytes / np.where(np.isnan(log.up_rate), np.inf, log.up_rate)
        self._together = bool(np.ptp(self._delay) == 0 == np.ptp(self._cycle))
        self._near = lru_cache(maxsize=4)(self._look_around)

    @abstractmethod
    def _load(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Return the record, and which of its devices each client is, shape (N,)."""

    def _join_cycles(self, cycle: NDArray[np.float64], first: NDArray[np.int64]) -> None:
        """Let sessions that last until the end of a record go on in the next cycle, if it begins with one.

        Parameters
        ----------
        cycle, first : (S,)
            Of each session's device: the length of its record, and its first session.
        """
        joined = np.flatnonzero((self._leave == cycle) & (self._start[first] == 0))
        following = self._leave[first[joined]]  # when the device leaves in the next cycle, if it does
        never = following == cycle[joined]
        self._leave[joined] = np.where(never, np.inf, cycle[joined] + following)

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds that have passed when round t ends (see `Trace.seconds`)."""
        check_round(t)
        return t * self._round_seconds

    def round(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        check_round(t)
        now = self._begin + (t - 1) * self._round_seconds
        session, clock = self._running(now)
        who = self._client[session]
        time = np.minimum(self._leave[session] - clock, self._deadline)
        if self._pause:
            leaving = np.flatnonzero(time < self._deadline)
            until = self._online_until(now + self._deadline, who[leaving])
            time[leaving] = until - self._online_until(now, who[leaving])
        if self._upload is not None:
            time = np.maximum(time - self._upload[session], 0)
        done = np.floor(self._speed[session] * time + _GUARD)
        share = np.minimum(done / self._steps, 1)
        online, completion = np.zeros(self.num_clients, np.bool_), np.zeros(self.num_clients, np.float32)
        online[who] = True
        completion[who] = share if self._partial else share == 1
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)

    def _running(self, now: float) -> tuple[NDArray[np.int64], NDArray[np.float64] | float]:
        """Return the sessions that run at a time, one of each client online, and the time of its clock.

        Where all records begin and end together, all clocks show the same.
        """
        if self._together:
            time = float(self._position(now, slice(1))[1][0])
            near = self._near(int(time // (_AROUND * self._round_seconds)))
            return near[(self._start[near] <= time) & (time < self._end[near])], time
        _, clock = self._position(now, slice(None))
        session = self._session(clock, slice(None))
        online = session >= self._low
        online[online] = clock[online] < self._end[session[online]]
        return session[online], clock[online]

    def _look_around(self, stretch: int) -> NDArray[np.int64]:
        """Return the sessions of clients that touch a stretch of time: few, for some rounds in a row."""
        begin = stretch * _AROUND * self._round_seconds
        touch = self._start <= begin + _AROUND * self._round_seconds
        touch &= (self._end >= begin) & (self._client >= 0)
        return np.flatnonzero(touch)

    def _position(self, now: float, who: _Clients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how often the clients' records have begun anew before `now`, and the time on each since."""
        time = now - self._delay[who]
        if not self._repeat:
            return np.zeros(len(time)), time
        cycles, clock = np.divmod(time, self._cycle[who])  # the remainder is exact
        begun = time >= 0
        return np.where(begun, cycles, 0), np.where(begun, clock, time)

    def _session(self, clock: NDArray[np.float64], who: _Clients) -> NDArray[np.int64]:
        """Return each client's last session that has begun; below its first one if none has.

        A bisection for all clients at once: nothing is remembered from round to round.
        """
        low, high = self._low[who].copy(), self._high[who].copy()
        while (searching := np.flatnonzero(low < high)).size:
            middle = (low[searching] + high[searching]) // 2
            begun = self._start[middle] <= clock[searching]
            low[searching[begun]] = middle[begun] + 1
            high[searching[~begun]] = middle[~begun]
        return np.asarray(low - 1)

    def _online_until(self, now: float, who: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds that clients were online from the beginning of their records until `now`."""
        cycles, clock = self._position(now, who)
        session = self._session(clock, who)
        begun = session >= self._low[who]
        s = session[begun]
        inside = np.minimum(clock[begun], self._end[s]) - self._start[s]
        seconds = cycles * self._total[who]
        seconds[begun] += self._before[s] + inside
        return seconds


class Recorded(VirtualClock):
    """Clients that replay a device log, on a virtual clock (see `VirtualClock`).

    The file holds client,start,end[,steps_per_second[,up_bytes_per_second]], times in seconds, as CSV or JSON
    lines (see `traces.recorded.device_log`). Its clients are 0..N-1.
    """

    def _load(self, file: str) -> tuple[DeviceLog, NDArray[np.intp]]:
        """Read the device log; client k is device k."""
        return read_device_log("trace recorded", file, self.num_clients), np.arange(self.num_clients)
