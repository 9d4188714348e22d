"""Work that takes time while clients come and go, in rounds of fixed duration or in event time."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedtide.base.allowed import Count, NotNegative, Positive
from fedtide.base.errors import SettingsError
from traces.base import NEVER, SECOND, Moments, RoundAvailability, SeededTrace, microseconds
from traces.patterns.speeds import Speeds
from traces.sessions import Online, Sessions

# In steps: it covers the rounding of products such as 0.1 steps per second times 30 s, and is less than what
# is done in a microsecond at one step per second.
_GUARD = 0.999e-6


class Tasks(NamedTuple):
    """What becomes of K tasks.

    Attributes
    ----------
    moment : (K,) int64
        When the reply arrives or, if there is none, the client is free, in microseconds.
    completion : (K,) float64
        Finished fraction of the E local steps; 0: there is no reply.
    """

    moment: Moments
    completion: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TimedTrace(SeededTrace):
    """Devices that work while they are online and return what they have finished by the deadline.

    Round t starts ``(t - 1) round_seconds`` after the begin. A client that is online at that moment can be
    selected. From then on it has

    - with `stop`, the time until it leaves or the deadline passes, whichever comes first;
    - with `pause`, all the time it is online before the deadline: it resumes when it comes back.

    The first part of this time goes into the download of the model, the last into the upload, and the rest
    into local steps. A device that leaves thus returns what it has finished: an interrupted upload can be
    resumed, and a device that stops being idle or charging can still send. Its completion is
    ``min(1, floor(speed (time - transfers)) / E)``; 0, a dropout mid-round, if it does not finish a single
    step. Speed and rates are those of the session in which the round starts.

    With `late`, the deadline ends no work: a client continues until it is done or, with `stop`, leaves, and
    its reply is late by the rounds whose deadlines have passed by then. Meanwhile it gets no new task.

    In event time (see `traces.compose.timeline`), which has no `late`, a task may be given at any moment, and
    takes ``whole = E / speed + transfers`` of work. With a deadline D (none: infinite), its reply arrives

    - with `stop` after ``min(time, whole)``, where ``time = min(until it leaves, D)``;
    - with `pause` once the client has been online for `whole`, at the latest after D.

    A client that has finished no step or, with ``partial=false``, not all, sends no reply, and is free from
    that moment; so it is with `pause`, without a deadline, if its recording ends before it is done.

    Attributes
    ----------
    round_seconds
        Seconds from the start of a round to the start of the next; in event time only for `speed`.
    deadline
        Seconds after the start of a round, or in event time of a task, by which replies must arrive; 0: the
        end of the round, or none.
    on_interrupt
        What happens when a client leaves: it hands in what it has finished, or pauses.
    late
        Whether clients continue after the deadline; one that never finishes has dropped out.
    partial
        Whether incomplete work counts; otherwise, as in FedScale, the client has dropped out.
    local_steps
        E, local steps of a complete client; the run's --local-steps unless given.
    speed
        Steps per second where none is recorded, the median over clients; 0: a client that is online
        throughout just meets the deadline, so its completion is the fraction of time it is online.
    spread
        Standard deviation of the logarithm of these speeds, which are log-normal; 0: all clients are equal.
    """

    role = "clock"
    round_seconds: Positive = 600.0
    deadline: NotNegative = 0.0
    on_interrupt: Literal["stop", "pause"] = "stop"
    late: bool = False
    partial: bool = True
    local_steps: Count = 10
    speed: NotNegative = 0.0
    spread: NotNegative = 0.0
    speeds: Speeds | None = field(default=None, init=False, compare=False)

    @cached_property
    def has_late_replies(self) -> bool:  # type: ignore[override]
        return self.late

    # What a subclass says

    @property
    @abstractmethod
    def sessions(self) -> Sessions:
        """Who is online when."""

    @property
    def start(self) -> int:
        """When round 1 starts, in the time of the sessions; event time counts from then."""
        return 0

    def rates(self, t: int, there: Online) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return steps per second, NaN where unknown, and seconds that transfers take, for tasks of round t.

        Both have shape (K,), and belong to the caller.
        """
        return np.full(len(there.client), np.nan), np.zeros(len(there.client))

    # Rounds

    def with_speeds(self, speeds: Speeds) -> Self:
        """Return a copy with speeds where none are recorded; ValueError: it has such speeds already."""
        if self.speed or self.spread:
            raise SettingsError(
                f"trace {self.name}: speed and spread are those of speeds, leave them out of {self.name}"
            )
        clock = copy(self)  # which has read its file already
        object.__setattr__(clock, "speeds", speeds)
        return clock

    def ends(self, t: int) -> int:
        return int(microseconds(t * self.round_seconds))

    def availability(self, t: int) -> RoundAvailability:
        there, tasks = self._round(t)
        online, completion = np.zeros(self.num_clients, np.bool_), np.zeros(self.num_clients, np.float32)
        online[there.client] = True
        completion[there.client] = tasks.completion
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)

    def delay(self, t: int) -> NDArray[np.int32]:
        delay = np.zeros(self.num_clients, np.int32)
        if self.late:
            there, tasks = self._round(t)
            after = tasks.moment - self.ends(t - 1) - self._time
            rounds = -(-after // max(self.ends(1), 1))
            delay[there.client] = np.clip(rounds, 0, np.iinfo(np.int32).max)
        return delay

    def work_time(self, t: int, clients: NDArray[np.intp]) -> Moments:
        """Return how long clients that are online when round t starts work on its tasks, shape (K,)."""
        now = self.ends(t - 1)
        return self._tasks(now, t, self.sessions.online(self.start + now, clients), self._limit).moment - now

    @property
    def _time(self) -> int:
        """How long after the start of a round replies are in time."""
        return int(microseconds(self.deadline or self.round_seconds))

    @property
    def _limit(self) -> int:
        """How long a client may work on a task of a round."""
        return NEVER if self.late else self._time

    def _round(self, t: int) -> tuple[Online, Tasks]:
        """Return who is online at the start of round t, and what becomes of these clients' tasks."""
        if self.deadline > self.round_seconds:
            raise SettingsError(
                f"trace {self.name}: deadline is {self.deadline:g}; it must be at most round-seconds, "
                f"{self.round_seconds:g}, or 0 for the end of the round"
            )
        now = self.ends(t - 1)
        there = self.sessions.online(self.start + now)
        return there, self._tasks(now, t, there, self._limit)

    # Event time

    def is_online(self, now: int) -> NDArray[np.bool_]:
        """Return who is online, shape (N,)."""
        return self.sessions.is_online(self.start + now)

    def next_online(self, begin: Moments) -> Moments:
        """Return the first moment from `begin` on at which each client is online; `NEVER`; shape (N,)."""
        found = self.sessions.next_online(np.where(begin < NEVER, self.start + begin, NEVER))
        return np.where(found < NEVER, found - self.start, NEVER)

    def leave(self, now: int, clients: NDArray[np.intp]) -> Moments:
        """Return when clients that are online leave, shape (K,); `NEVER`."""
        leave = self.sessions.online(self.start + now, clients).leave
        return np.where(leave < NEVER, leave - self.start, NEVER)

    def tasks(self, now: int, t: int, clients: NDArray[np.intp]) -> Tasks:
        """Return what becomes of tasks of round t that clients get now, who are online, shape (K,)."""
        there = self.sessions.online(self.start + now, clients)
        limit = int(microseconds(self.deadline)) if self.deadline else NEVER
        return self._tasks(now, t, there, limit)

    # What becomes of a task

    def _tasks(self, now: int, t: int, there: Online, limit: int) -> Tasks:
        """Return what becomes of tasks of round t that clients get now; they have `limit` for each."""
        clients, _, leave = there
        begin = self.start + now
        recorded, transfers = self.rates(t, there)
        speed = self._speed(t, recorded, clients)
        whole = microseconds(self.local_steps / speed + transfers)
        stay = leave - begin
        time = np.minimum(stay, limit)
        moment = now + np.minimum(time, whole)
        completion = self._completion(time, transfers, speed)
        if self.on_interrupt == "pause" and (cut := np.flatnonzero((completion < 1) & (stay < limit))).size:
            deadline = min(begin + limit, NEVER)
            until, time = self.sessions.work(begin, whole[cut], deadline, clients[cut])
            moment[cut] = until - self.start
            partial = 0.0 if deadline == NEVER else self._completion(time, transfers[cut], speed[cut])
            completion[cut] = np.where(time == whole[cut], 1.0, partial)
        return Tasks(moment, completion if self.partial else np.floor(completion))

    def _speed(self, t: int, recorded: NDArray[np.float64], clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the steps per second of clients, for tasks of round t, given those that are recorded."""
        speed = recorded
        if (unknown := np.flatnonzero(np.isnan(speed))).size:
            few = clients[unknown]
            speed[unknown] = (
                self._own[few] if self.speeds is None else self.speeds.drawn(t, few, self.local_steps)
            )
        if self.speeds is not None:
            speed *= self.speeds.factor[clients]
        return speed

    @cached_property
    def _own(self) -> NDArray[np.float64]:
        """Each client's speed where none is recorded, shape (N,)."""
        median = self.speed or self.local_steps / (max(self._time, 1) / SECOND)  # just what the round allows
        return median * np.exp(self.spread * self.rng("clock-speed", 0).standard_normal(self.num_clients))

    def _completion(
        self, time: Moments, transfers: NDArray[np.float64], speed: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the fraction of the steps that are done in some time, part of which goes into transfers."""
        steps = np.floor(speed * np.maximum(time / SECOND - transfers, 0) + _GUARD)
        return np.minimum(steps / self.local_steps, 1)
