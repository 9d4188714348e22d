"""Who is online when, until when, and how far a client gets: of recorded sessions, or of drawn ones.

Moments are microseconds from the beginning of the trace, see `traces.base.Moments`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traces.base import NEVER, SECOND, Draws, Moments
from traces.recorded.log import DeviceLog

Lengths = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]


class Online(NamedTuple):
    """K clients that are online at a moment; three arrays of shape (K,)."""

    client: NDArray[np.intp]
    session: NDArray[np.int64]  # the recorded session that runs; of drawn spells, the number from 0
    leave: Moments  # when the client goes offline


@dataclass
class Spells:
    """Where each of K clients is, online or offline; arrays of shape (K,)."""

    client: NDArray[np.intp]
    session: NDArray[np.int64]  # see `Online`
    online: NDArray[np.bool_]
    until: Moments  # when another session begins, or none runs any more
    leave: Moments  # when the client goes offline, maybe in a later session; if it is offline, when it comes
    drawn: NDArray[np.float64]  # the same in seconds, not rounded, if it is drawn

    def of(self, at: NDArray[np.intp]) -> Spells:
        """Return a copy of some of them."""
        return Spells(*(getattr(self, field.name)[at] for field in fields(self)))


class Sessions(ABC):
    """N clients that come and go.

    Time mostly goes on in steps that are shorter than sessions. So the last spell found is kept for each
    client, and few have to be looked up; for an earlier moment, all begin anew.
    """

    def __init__(self) -> None:
        self._spells, self._now = self._begin(), 0

    @abstractmethod
    def _begin(self) -> Spells:
        """Return where all clients are at first; `until` is 0 for those to be looked up."""

    @abstractmethod
    def _find(self, spells: Spells, at: NDArray[np.intp], moments: Moments) -> None:
        """Replace spells that are over, at some indices, by those that run at moments of shape `at`."""

    def online(self, now: int, clients: NDArray[np.intp] | None = None) -> Online:
        """Return those of some clients, by default of all, that are online, in the order given."""
        spells = self._at(now, clients)
        there = np.flatnonzero(spells.online) if clients is None else clients[spells.online[clients]]
        return Online(there, spells.session[there], spells.leave[there])

    def is_online(self, now: int) -> NDArray[np.bool_]:
        """Return who is online, shape (N,)."""
        return self._at(now).online.copy()

    def next_online(self, begin: Moments) -> Moments:
        """Return the first moment from `begin` on at which each client is online, shape (N,)."""
        moments = np.full(len(begin), NEVER)
        clients = np.flatnonzero(begin < NEVER)
        then = begin[clients]
        self._go_back(int(then.min(initial=NEVER)))
        spells = self._spells.of(clients)
        self._follow(spells, np.arange(len(clients)), then)
        moments[clients] = np.where(spells.online, then, np.minimum(spells.leave, NEVER))
        return moments

    def work(
        self, begin: int, wanted: Moments, deadline: int, clients: NDArray[np.intp]
    ) -> tuple[Moments, Moments]:
        """Return until when clients work, and how long they are online until then, shape (K,) each.

        That is when they have been online for as long as `wanted`, or `deadline` has come; if that is
        `NEVER`, it may be when they go offline for good.
        """
        self._at(begin, clients)
        spells = self._spells.of(clients)
        moments, done = self._skip(begin, wanted, deadline, clients)
        working = np.arange(len(clients))
        while working.size:
            self._follow(spells, working, moments[working])
            since, stop = moments[working], np.minimum(spells.leave[working], deadline)
            missing = wanted[working] - done[working]
            time = np.where(spells.online[working], np.minimum(stop - since, missing), 0)
            done[working] += time
            enough = time == missing
            moments[working] = np.where(enough, since + time, np.where(stop < NEVER, stop, since))
            working = working[~enough & (stop < deadline)]
        return moments, done

    def _skip(
        self, begin: int, wanted: Moments, deadline: int, clients: NDArray[np.intp]
    ) -> tuple[Moments, Moments]:
        """Return until when work can be followed without looking at each session, and the time online."""
        return np.full(len(clients), begin), np.zeros(len(clients), np.int64)

    def _at(self, now: int, clients: NDArray[np.intp] | None = None) -> Spells:
        """Return where all clients are; if some are given, only these are asked about."""
        self._go_back(now)
        self._now = now
        if clients is None:
            over = np.flatnonzero(self._spells.until <= now)
        else:
            over = clients[self._spells.until[clients] <= now]
        if over.size:
            self._find(self._spells, over, np.full(len(over), now))
        return self._spells

    def _go_back(self, now: int) -> None:
        """Begin anew if a moment is earlier than those asked about before."""
        if now < self._now:
            self._spells, self._now = self._begin(), 0

    def _follow(self, spells: Spells, at: NDArray[np.intp], moments: Moments) -> None:
        """Go on to the spells that run at given moments, shape of `at`."""
        over = spells.until[at] <= moments
        if over.any():
            self._find(spells, at[over], moments[over])


class RecordedSessions(Sessions):
    """Clients that replay the recordings of devices, once or over and over.

    Time counts from the start of the earliest recording. With `repeat`, each recording starts over at its own
    end. A session that lasts until that end then continues in the next cycle if the recording also starts
    with a session, so that a device that is online throughout never leaves.

    `device` is the one that each client replays, shape (N,), no device twice.
    """

    def __init__(self, log: DeviceLog, device: NDArray[np.intp], repeat: bool) -> None:
        self._low, self._high, self._repeat = log.first[device], log.first[device + 1], repeat
        self._cycle, self._delay = log.cycle[device], (log.origin - log.origin.min())[device]
        owner = np.repeat(np.arange(log.num_devices), np.diff(log.first))  # each session's device
        origin = log.origin[owner]
        self._start, self._end, self._leave = log.start - origin, log.end - origin, log.leave - origin
        if repeat:
            self._join_cycles(log.cycle[owner], log.first[owner])
        total = np.concatenate([[0], np.cumsum(log.end - log.start)])
        self._total = total[self._high] - total[self._low]  # time online in a cycle
        super().__init__()

    def _begin(self) -> Spells:
        n, silent = len(self._low), self._low == self._high  # these are offline for ever
        until = np.where(silent, NEVER, 0)
        clients, session, online = np.arange(n), np.zeros(n, np.int64), np.zeros(n, np.bool_)
        return Spells(clients, session, online, until, until.copy(), np.zeros(n))

    def _join_cycles(self, cycle: Moments, first: NDArray[np.int64]) -> None:
        """Let sessions that last until the end of a recording continue if the recording starts with one.

        `cycle` is the length of each session's recording, `first` the first session of its device.
        """
        joined = np.flatnonzero((self._leave == cycle) & (self._start[first] == 0))
        following = self._leave[first[joined]]  # when the device leaves in the next cycle, if at all
        throughout = following == cycle[joined]
        self._leave[joined] = np.where(throughout, NEVER, cycle[joined] + following)

    def _find(self, spells: Spells, at: NDArray[np.intp], moments: Moments) -> None:
        clients = spells.client[at]
        low, high, cycle = self._low[clients], self._high[clients], self._cycle[clients]
        time = moments - self._delay[clients]
        over = np.maximum(time // cycle, 0) * cycle if self._repeat else np.zeros_like(time)
        session = _last(self._start, time - over, low, high)
        begin = moments - time + over  # of the cycle
        online = (session >= low) & (time - over < self._end[session])
        following = np.where(session + 1 < high, session + 1, low)
        comes = begin + self._start[following]
        comes[session + 1 == high] += cycle[session + 1 == high] if self._repeat else NEVER
        spells.session[at], spells.online[at] = session, online
        spells.until[at] = np.where(online, begin + self._end[session], comes)
        spells.leave[at] = np.where(online, begin + self._leave[session], comes)

    def _skip(
        self, begin: int, wanted: Moments, deadline: int, clients: NDArray[np.intp]
    ) -> tuple[Moments, Moments]:
        """Pass over whole cycles."""
        moments, done = super()._skip(begin, wanted, deadline, clients)
        if self._repeat:
            total, cycle = np.maximum(self._total[clients], 1), self._cycle[clients]
            cycles = np.minimum(np.maximum(wanted - 1, 0) // total, (deadline - begin) // cycle)
            moments += cycles * cycle
            done += cycles * total
        return moments, done


def _last(
    values: Moments, limits: Moments, low: NDArray[np.int64], high: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the index of the last value in low:high that is at most the limit; low - 1 if none is.

    Values ascend from low to high; all arrays but `values` have shape (K,).
    """
    low, high = low.copy(), high.copy()
    while (searching := np.flatnonzero(low < high)).size:
        middle = (low[searching] + high[searching]) // 2
        below = values[middle] <= limits[searching]
        low[searching[below]] = middle[below] + 1
        high[searching[~below]] = middle[~below]
    return np.asarray(low - 1)


class DrawnSessions(Sessions):
    """Clients that are online and offline in turns, from the beginning on, for ever.

    Each spell is a function of the client and of its number; only the present one of each client is kept.

    `share` is the probability of being online at first. `lengths` returns the lengths of spells in seconds,
    above 0 and maybe infinite, given a draw for each from 0 to 1 and whether they are online.
    """

    def __init__(self, num_clients: int, draws: Draws, share: float, lengths: Lengths) -> None:
        self._num_clients, self._draws, self._share, self._lengths = num_clients, draws, share, lengths
        super().__init__()

    def _begin(self) -> Spells:
        clients, number = np.arange(self._num_clients), np.zeros(self._num_clients, np.int64)
        online = self._draws.uniform(clients, number) < self._share
        end = self._lengths(self._draws.uniform(clients, number + 1), online)
        until = _rounded(end)
        return Spells(clients, number, online, until, until.copy(), end)

    def _find(self, spells: Spells, at: NDArray[np.intp], moments: Moments) -> None:
        while at.size:
            number, online, end = spells.session[at] + 1, ~spells.online[at], spells.drawn[at]
            end += self._lengths(self._draws.uniform(spells.client[at], number + 1), online)
            until = _rounded(end)
            spells.session[at], spells.online[at], spells.drawn[at] = number, online, end
            spells.until[at] = spells.leave[at] = until
            over = until <= moments
            at, moments = at[over], moments[over]


def _rounded(seconds: NDArray[np.float64]) -> Moments:
    """Convert seconds from 0 on, see `microseconds`, which is slower."""
    seconds = seconds * SECOND
    np.rint(seconds, out=seconds)
    return np.minimum(seconds, NEVER, out=seconds).astype(np.int64)
