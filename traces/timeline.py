"""Event time: what a trace knows at any moment, in seconds, instead of round by round.

Rounds of event time end with replies, so that they have no fixed length: who is online when one of them
begins, and how long a task takes, are questions to a trace with a clock. Virtual time begins with the trace,
at 0 s. A task that a client gets while it is online takes ``whole = E / speed + upload`` seconds of work, at
the speed and the upload rate of the session that is running. With the deadline D of a task (inf: none), its
reply arrives

- with `stop` after ``min(time, whole)`` seconds, where ``time = min(until it leaves, D)``;
- with `pause` once the client has been online for `whole` seconds, at the latest after D seconds.

It has done ``min(E, floor(speed (time - upload) + 1e-6))`` steps, where `time` with `pause` are the seconds
online before the deadline. A client that has done none, or with ``partial=false`` not all, sends no reply,
and is free from that moment; so it is with `pause`, without a deadline, if its recording ends before it is
done. Every moment is a whole number of microseconds: otherwise 0.1 + 0.1 + 0.1 seconds would not be 0.3, and
who is first a matter of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.errors import SettingsError
from traces.base import RoundAvailability, Trace
from traces.compose import Combined
from traces.membership import Membership
from traces.patterns.replies import Lost
from traces.patterns.sessions import DrawnSessions
from traces.patterns.speeds import Speeds
from traces.timed import TimedTrace

_MICROSECONDS = 1e6  # in a second


class Tasks(NamedTuple):
    """What becomes of K tasks.

    Attributes
    ----------
    moment : (K,) float64
        When the reply arrives or, if there is none, the client is free, in whole microseconds.
    completion : (K,) float64
        Finished fraction of the E local steps; 0: the client drops out.
    """

    moment: NDArray[np.float64]
    completion: NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """A trace in event time, see `timeline`. Moments are virtual seconds; clients are numbered 0..N-1."""

    _clock: TimedTrace
    _membership: Membership

    def online(self, now: float) -> NDArray[np.bool_]:
        """Return who is online, members or not, shape (N,)."""
        return self._clock.online_at(now)

    def availability(self, t: int, now: float) -> RoundAvailability:
        """Return who is a member and online in round t if it begins now, at work or not."""
        begin, end = self.window(t)
        member = (begin <= now) & (now < end)
        online = member & self.online(now)
        return RoundAvailability(member, online, online.astype(np.float32))

    def next_online(self, begin: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the first moment from `begin` on at which each client is online, not rounded, shape (N,).

        It is infinite where there is none; `begin` may be infinite.
        """
        return self._clock.next_online(begin)

    def leave(self, now: float, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the seconds until clients that are online leave, shape (K,); infinite: they never do."""
        return self._clock.leave(now, clients)

    def tasks(self, now: float, t: int, clients: NDArray[np.intp]) -> Tasks:
        """Return what becomes of tasks of round t that are given now to clients that are online, shape (K,).

        Whether replies are lost, `Trace.lost` says.
        """
        work = self._clock.tasks(now, t, clients)
        return Tasks(np.rint((now + work.seconds) * _MICROSECONDS) / _MICROSECONDS, work.completion)

    def window(self, t: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return between which moments round t has to begin for clients to be members in it, shape (N,) each.

        From the first on, and before the second.
        """
        return self._membership.window(t)


def timeline(trace: Trace) -> Timeline:
    """Return a trace in event time.

    It may consist of one trace with a clock, speeds, lost replies, and membership; with speeds alone, all
    clients are always online. ValueError: it has anything else, which has a meaning in rounds only, or
    replies that are late by rounds.
    """
    parts = trace.parts if isinstance(trace, Combined) else (trace,)
    clocks, members = [], [Membership(trace.num_clients, {}, {})]
    for part in parts:
        if part.has_late_replies:
            raise SettingsError(
                "trace: in event time, what is not done in a round is late anyway, leave late out"
            )
        if isinstance(part, TimedTrace):
            clocks.append(part)
        elif isinstance(part, Speeds):
            everybody = DrawnSessions(
                part.num_clients, part.seed, kind="always", local_steps=part.local_steps
            )
            clocks.append(everybody.with_speeds(part))
        elif isinstance(part, Membership):
            members.append(part)
        elif not isinstance(part, Lost):
            raise SettingsError(
                f"trace: {part.label or type(part).__name__} is defined by rounds, and they have no fixed "
                f"length in event time (round-ends); take {_WITH_CLOCK} instead"
            )
    if len(clocks) != 1:
        found = " and ".join(clock.name for clock in clocks) or "none"
        raise SettingsError(
            f"trace: event time needs one trace with a clock, here is {found}: take {_WITH_CLOCK}"
        )
    return Timeline(clocks[0], members[-1])


_WITH_CLOCK = "one of phones, recorded, flash, sessions or speeds"
