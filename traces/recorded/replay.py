"""Recorded sessions replayed in virtual time: who is online at a moment, and for how long."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from traces.recorded.sessions import DeviceLog

_Clients = NDArray[np.int64] | slice
_Moments = float | NDArray[np.float64]

_ROUNDING = 1e-7  # seconds; more than the rounding of sums, and less than any session lasts


class Replay:
    """N clients that replay the recordings of devices, once or over and over.

    Virtual time counts in seconds from the start of the earliest recording. With `repeat`, each recording
    starts over at its own end. A session that lasts until that end then continues in the next cycle if the
    recording also starts with a session, so a device that is online throughout never leaves.

    `device` is the one that each client replays, shape (N,), no device twice; `window`, the seconds whose
    sessions are looked up together, see `online`. The attribute `client` is the one that replays each
    session, shape (S,); -1 if no client does.
    """

    def __init__(self, log: DeviceLog, device: NDArray[np.intp], repeat: bool, window: float) -> None:
        self._low, self._high = log.first[device], log.first[device + 1]
        self._cycle, self._repeat, self._window = log.cycle[device], repeat, window
        self._delay = (log.origin - log.origin.min())[device]
        owner = np.repeat(np.arange(log.num_devices), np.diff(log.first))  # each session's device
        client = np.full(log.num_devices, -1)
        client[device] = np.arange(len(device))
        self.client = client[owner]
        # Positions in the recording: with times since 1970, rounding would open gaps between cycles.
        origin = log.origin[owner]
        self._start, self._end, self._leave = log.start - origin, log.end - origin, log.leave - origin
        if repeat:
            self._join_cycles(log.cycle[owner], log.first[owner])
        self._before = log.before
        last = np.concatenate([[0.0], log.before + log.end - log.start])  # for devices without sessions
        self._total = np.where(self._high > self._low, last[self._high], 0.0)  # seconds online per cycle
        self._aligned = bool(np.ptp(self._delay) == 0 == np.ptp(self._cycle))
        self._nearby = lru_cache(maxsize=4)(self._find_nearby)
        # The session that each client's last search found, and the positions from and until which it holds.
        self._latest, self._until = self._low - 1, np.full(len(device), np.inf)
        self._since = np.where(self._low == self._high, -np.inf, np.inf)

    def _join_cycles(self, cycle: NDArray[np.float64], first: NDArray[np.int64]) -> None:
        """Let sessions that last until the end of a recording continue if the recording starts with one.

        `cycle` is the length of each session's recording, `first` the first session of its device.
        """
        joined = np.flatnonzero((self._leave == cycle) & (self._start[first] == 0))
        following = self._leave[first[joined]]  # when the device leaves in the next cycle, if at all
        throughout = following == cycle[joined]
        self._leave[joined] = np.where(throughout, np.inf, cycle[joined] + following)

    def online(self, now: float, ahead: float = 0.0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the running sessions, one per online client, and the seconds until each client leaves.

        They are indices into the log, and infinite for a client that never leaves. The sessions are those
        that run `ahead` seconds after `now`, from which the seconds count. If all recordings are aligned, one
        scan of all sessions finds those that overlap a window of time, and only these few are compared each
        time. Otherwise each client's session is found by bisection.
        """
        if self._aligned:
            position = float(self._locate(now, slice(1), ahead)[0][0])
            then = position + ahead
            nearby = self._nearby(int(then // self._window))
            session = nearby[(self._start[nearby] <= then) & (then < self._end[nearby])]
            return session, self._leave[session] - position
        return self.running(now, slice(None), ahead)

    def running(
        self, now: float, clients: _Clients, ahead: float = 0.0
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the same as `online` for those of some clients that are online, in their order."""
        session, position, online = self._find(now, clients, ahead)
        session = session[online]
        return session, self._leave[session] - position[online]

    def next_online(self, begin: NDArray[np.float64], ahead: float) -> NDArray[np.float64]:
        """Return the first moment from `begin` on at which each client is online, shape (N,).

        It is infinite where there is none, and more than `ahead` seconds later where the client is not online
        by then; `begin` may be infinite.
        """
        clients = np.flatnonzero((self._high > self._low) & (begin < np.inf))
        session, position, online = self._find(begin[clients], clients, ahead)
        following, low = session + 1, self._low[clients]
        again = following == self._high[clients]  # in the next cycle
        wait = self._start[np.where(again, low, following)] - position
        wait[again] += self._cycle[clients[again]] if self._repeat else np.inf
        moments = np.full(len(begin), np.inf)
        moments[clients] = begin[clients] + np.where(online, 0, np.maximum(wait, ahead))
        return moments

    def seconds_online(self, begin: float, end: float, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how long clients are online between two moments of virtual time, shape of `clients`."""
        return self._online_until(end, clients) - self._online_until(begin, clients)

    def moment_after(
        self, begin: float, seconds: NDArray[np.float64], clients: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return when clients have been online for positive `seconds` since a moment of virtual time.

        It is infinite for a client that is never online that long. All arrays have shape (K,).
        """
        wanted = self._online_until(begin, clients) + seconds
        almost = np.maximum(wanted - _ROUNDING, _ROUNDING)  # in the same session, if that ends just then
        total = self._total[clients]
        moment = np.full(len(clients), np.inf)
        possible = np.flatnonzero((total > 0) & (self._repeat | (almost <= total)))
        clients, wanted, almost, total = (
            clients[possible],
            wanted[possible],
            almost[possible],
            total[possible],
        )
        cycles = np.ceil(almost / total) - 1 if self._repeat else np.zeros(len(clients))
        session = self._last(self._before, np.less, almost - cycles * total, clients)
        position = self._start[session] + (wanted - cycles * total) - self._before[session]
        position = np.minimum(position, self._end[session])
        moment[possible] = self._delay[clients] + cycles * self._cycle[clients] + position
        return moment

    def _find_nearby(self, window: int) -> NDArray[np.int64]:
        """Return the clients' sessions that overlap a window of positions."""
        begin = window * self._window
        overlap = self._start <= begin + self._window
        overlap &= (self._end >= begin) & (self.client >= 0)
        return np.flatnonzero(overlap)

    def _find(
        self, now: _Moments, clients: _Clients, ahead: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """Return each client's last session that has started, its position, and whether the session runs.

        The session is the one before a client's first if none has started `ahead` seconds after `now`.
        """
        position, _ = self._locate(now, clients, ahead)
        then = position + ahead
        session = self._started(then, clients)
        online = session >= self._low[clients]
        online[online] = then[online] < self._end[session[online]]
        return session, position, online

    def _locate(
        self, now: _Moments, clients: _Clients, ahead: float = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the position in each client's recording, and how many cycles of it are over.

        A cycle that ends within `ahead` seconds is over; the position in the next is then negative.
        """
        time = now - self._delay[clients]
        if not self._repeat:
            return time, np.zeros(len(time))
        cycle = self._cycle[clients]
        cycles, position = np.divmod(time, cycle)  # the remainder is exact
        started, over = time >= 0, position + ahead >= cycle
        position = np.where(over, position - cycle, position)
        return np.where(started, position, time), np.where(started, cycles + over, 0)

    def _started(self, position: NDArray[np.float64], clients: _Clients) -> NDArray[np.int64]:
        """Return each client's last session that has started; one before its first if none has.

        Time mostly goes on in steps that are shorter than sessions: few have to be searched.
        """
        known = (self._since[clients] <= position) & (position < self._until[clients])
        if not known.all():
            unknown = np.flatnonzero(~known)
            searched = unknown if isinstance(clients, slice) else clients[unknown]
            low, high = self._low[searched], self._high[searched]
            latest = self._last(self._start, np.less_equal, position[unknown], searched)
            self._latest[searched] = latest
            self._since[searched] = np.where(latest < low, -np.inf, self._start[latest])
            following = np.minimum(latest + 1, len(self._start) - 1)
            self._until[searched] = np.where(latest + 1 < high, self._start[following], np.inf)
        return self._latest[clients]

    def _last(
        self, values: NDArray[np.float64], order: np.ufunc, limits: NDArray[np.float64], clients: _Clients
    ) -> NDArray[np.int64]:
        """Return each client's last session whose value is below its limit; one before its first if none is.

        Values ascend with a client's sessions; `order` is `np.less` or `np.less_equal`.
        """
        low, high = self._low[clients].copy(), self._high[clients].copy()
        while (searching := np.flatnonzero(low < high)).size:
            middle = (low[searching] + high[searching]) // 2
            below = order(values[middle], limits[searching])
            low[searching[below]] = middle[below] + 1
            high[searching[~below]] = middle[~below]
        return np.asarray(low - 1)

    def _online_until(self, now: float, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds that clients were online from the start of their recordings until `now`."""
        position, cycles = self._locate(now, clients)
        latest = self._started(position, clients)
        started = latest >= self._low[clients]
        session = latest[started]
        inside = np.minimum(position[started], self._end[session]) - self._start[session]
        seconds = cycles * self._total[clients]
        seconds[started] += self._before[session] + inside
        return seconds
