"""Spells online and offline, drawn one after the other for each client, as far as virtual time has gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traces.draws import Draws

_ROUNDING = 1e-7  # seconds; more than the rounding of sums
_MICROSECOND = 1e-6  # seconds

Lengths = Callable[[NDArray[np.float64], NDArray[np.bool_]], NDArray[np.float64]]


@dataclass
class _Spell:
    """The spell in which each of K clients is, three arrays of shape (K,)."""

    number: NDArray[np.int64]  # from 0
    online: NDArray[np.bool_]
    end: NDArray[np.float64]  # in seconds of virtual time; infinite if it is the last

    def of(self, clients: NDArray[np.intp]) -> _Spell:
        """Return a copy for some of the clients."""
        return _Spell(self.number[clients], self.online[clients], self.end[clients])


class Spells:
    """N clients that are online and offline in turns, from 0 s on, for ever; it answers what `Replay` does.

    Each spell is a function of the client and of its number. Only the present one of each client is kept:
    time that goes on is followed, and for an earlier moment all spells are drawn once more.

    `share` is the probability of being online at 0 s. `lengths` returns the lengths of spells in seconds,
    above 0 and maybe infinite, given a draw for each from 0 to 1 and whether they are online.
    """

    def __init__(self, num_clients: int, draws: Draws, share: float, lengths: Lengths) -> None:
        self.client = np.arange(num_clients)
        self._draws, self._share, self._lengths = draws, share, lengths
        self._now = np.inf  # of the last answer
        self._at(0.0)

    def online(self, now: float, ahead: float = 0.0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the clients that are online, and the seconds until each leaves (see `Replay.online`)."""
        return self.running(now, self.client, ahead)

    def running(
        self, now: float, clients: NDArray[np.intp], ahead: float = 0.0
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the same for those of some clients that are online."""
        then = now + ahead
        spell = self._at(then)
        self._follow(spell, self.client, then)
        self._now = then
        there = clients[spell.online[clients]]
        return there, spell.end[there] - now

    def next_online(self, begin: NDArray[np.float64], ahead: float) -> NDArray[np.float64]:
        """Return the first moment from `begin` on at which each client is online (see `Replay`)."""
        moments = np.full(len(begin), np.inf)
        clients = np.flatnonzero(begin < np.inf)
        then = begin[clients] + ahead
        spell = self._at(float(then.min(initial=np.inf))).of(clients)
        self._follow(spell, clients, then)
        moments[clients] = np.where(spell.online, begin[clients], spell.end)
        return moments

    def seconds_online(self, begin: float, end: float, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return how long clients are online between two moments, shape of `clients`."""
        spell = self._at(begin + _MICROSECOND).of(clients)
        seconds, since = np.zeros(len(clients)), np.full(len(clients), begin)
        passing = np.arange(len(clients))
        while passing.size:
            until = np.minimum(spell.end[passing], end)
            seconds[passing] += np.where(spell.online[passing], until - since[passing], 0)
            since[passing] = until
            passing = passing[until < end]
            self._move(spell, clients, passing)
        return seconds

    def moment_after(
        self, begin: float, seconds: NDArray[np.float64], clients: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return when clients have been online for positive `seconds` since a moment (see `Replay`)."""
        spell = self._at(begin + _MICROSECOND).of(clients)
        moments, since, left = np.full(len(clients), np.inf), np.full(len(clients), begin), seconds.copy()
        passing = np.arange(len(clients))
        while passing.size:
            end, online = spell.end[passing], spell.online[passing]
            here = np.where(online, end - since[passing], 0)
            done = online & (left[passing] <= here + _ROUNDING)
            ready = passing[done]
            moments[ready] = np.minimum(since[ready] + left[ready], end[done])
            left[passing] -= here
            since[passing] = end
            passing = passing[~done & (end < np.inf)]
            self._move(spell, clients, passing)
        return moments

    def _at(self, moment: float) -> _Spell:
        """Return the spells of all clients at a moment or, to be followed, before."""
        if moment < self._now:
            first = np.zeros(len(self.client), np.int64)
            online = self._draws.uniform(self.client, first) < self._share
            lengths = self._lengths(self._draws.uniform(self.client, first + 1), online)
            self._spell, self._now = _Spell(first, online, lengths), 0.0
        return self._spell

    def _follow(self, spell: _Spell, clients: NDArray[np.intp], moments: float | NDArray[np.float64]) -> None:
        """Move on to the spells that run at some moments."""
        while (over := np.flatnonzero(spell.end <= moments)).size:
            self._move(spell, clients, over)

    def _move(self, spell: _Spell, clients: NDArray[np.intp], over: NDArray[np.intp]) -> None:
        """Move on to the next spell, where the present one is over."""
        spell.number[over] += 1
        spell.online[over] ^= True
        drawn = self._draws.uniform(clients[over], spell.number[over] + 1)
        spell.end[over] += self._lengths(drawn, spell.online[over])
