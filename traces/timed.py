"""Work that takes time while sessions pass, in rounds of fixed duration or in event time."""

from copy import copy
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.allowed import Count, NotNegative, Positive
from fedtide.ground.errors import SettingsError
from traces.base import RoundAvailability, SeededTrace
from traces.patterns.speeds import Speeds
from traces.patterns.spells import Spells
from traces.recorded.replay import Replay

_GUARD = 1e-6  # steps; covers the rounding of products such as 0.1 steps per second times 30 s
_MIDDLE = 5e-7  # seconds, half a microsecond


class Work(NamedTuple):
    """What becomes of K tasks.

    Attributes
    ----------
    seconds : (K,) float64
        From the start of the task until the reply arrives or, if there is none, the client is free.
    completion : (K,) float64
        Finished fraction of the E local steps; 0: there is no reply.
    """

    seconds: NDArray[np.float64]
    completion: NDArray[np.float64]


class TimedTrace(SeededTrace):
    """Devices that work while they are online and return what they have finished by the deadline.

    Round t starts ``(t - 1) round_seconds`` after the begin. A client that is online at that moment can be
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

    In event time (see `traces.timeline`), which has no `late`, a task may be given at any moment, and time
    ends with the deadline of the task, if there is one. A reply arrives when all steps and the upload are
    done, with `stop` at the latest when the client leaves, and with `pause` at the deadline.

    A subclass sets the attributes below, and has the options as parameters, see `VirtualClock`.
    """

    name: ClassVar[str]
    """The trace's name, for messages."""
    _sessions: Replay | Spells
    """Who is online when: S recorded sessions, or `Spells`, in which a client is its own session."""
    _recorded: NDArray[np.float64]
    """Steps per second in each session, NaN if unknown, shape (S,)."""
    _upload: NDArray[np.float64] | None = None
    """Seconds that an upload takes in each session, shape (S,); None: no time."""
    _begin: float = 0.0
    """When round 1 starts, in seconds of the sessions; event time counts from then."""
    _cost: float = 1.0
    """What all speeds are divided by."""

    def __init__(
        self,
        num_clients: int,
        seed: int,
        *,
        round_seconds: Positive,
        deadline: NotNegative,
        on_interrupt: Literal["stop", "pause"],
        late: bool,
        partial: bool,
        local_steps: Count,
        speed: NotNegative,
        spread: NotNegative,
    ) -> None:
        super().__init__(num_clients, seed)
        self._round_seconds, self._deadline = round_seconds, deadline
        self._pause, self._partial, self._steps = on_interrupt == "pause", partial, local_steps
        self.has_late_replies = late
        self._speeds: Speeds | None = None
        self._has_speeds = bool(speed or spread)
        median = speed or local_steps / (deadline or round_seconds)
        self._own = median * np.exp(spread * self.rng("clock-speed", 0).standard_normal(num_clients))

    def with_speeds(self, speeds: Speeds) -> Self:
        """Return a copy with speeds where none are recorded; ValueError: it has such speeds already."""
        if self._has_speeds:
            raise SettingsError(
                f"trace {self.name}: speed and spread are those of speeds, leave them out of {self.name}"
            )
        clock = copy(self)
        clock._speeds = speeds
        return clock

    def seconds(self, t: int) -> float | None:
        """Return the virtual seconds that have passed when round t ends (see `Trace.seconds`)."""
        return t * self._round_seconds

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t (see `Trace.round`)."""
        clients, work = self._round(t)
        online, completion = np.zeros(self.num_clients, np.bool_), np.zeros(self.num_clients, np.float32)
        online[clients] = True
        completion[clients] = work.completion
        return RoundAvailability(np.ones(self.num_clients, np.bool_), online, completion)

    def late(self, t: int) -> NDArray[np.int32]:
        """Return by how many rounds replies are late (see `Trace.late`)."""
        late = np.zeros(self.num_clients, np.int32)
        if self.has_late_replies:
            clients, work = self._round(t)
            after = (work.seconds - (self._deadline or self._round_seconds)) / self._round_seconds
            late[clients] = np.clip(np.ceil(after - _GUARD), 0, np.iinfo(np.int32).max)
        return late

    def work_seconds(self, t: int, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return how long clients that are online when round t starts work on its tasks, shape (K,)."""
        now = self._begin + (t - 1) * self._round_seconds
        return self._work(now, t, *self._sessions.running(now, clients), self._round_deadline).seconds

    @property
    def _round_deadline(self) -> float:
        """Seconds that a task of a round has."""
        return np.inf if self.has_late_replies else self._deadline or self._round_seconds

    def _round(self, t: int) -> tuple[NDArray[np.int64], Work]:
        """Return who is online at the start of round t, and what becomes of these clients' tasks."""
        if self._deadline > self._round_seconds:
            raise SettingsError(
                f"trace {self.name}: deadline is {self._deadline:g}; it must be at most round-seconds, "
                f"{self._round_seconds:g}, or 0 for the end of the round"
            )
        now = self._begin + (t - 1) * self._round_seconds
        session, until_leaving = self._sessions.online(now)
        return self._sessions.client[session], self._work(
            now, t, session, until_leaving, self._round_deadline
        )

    # Event time, see `traces.timeline`

    # A moment stands for the microsecond that it begins: who is online is seen in its middle. Otherwise a
    # client that leaves between two moments could be given tasks over and over at the first of them.

    def online_at(self, now: float) -> NDArray[np.bool_]:
        """Return who is online, shape (N,)."""
        online = np.zeros(self.num_clients, np.bool_)
        session, _ = self._sessions.online(self._begin + now, _MIDDLE)
        online[self._sessions.client[session]] = True
        return online

    def next_online(self, begin: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the first moment from `begin` on at which each client is online; inf: never; shape (N,)."""
        start = self._begin + begin
        found = self._sessions.next_online(start, _MIDDLE)
        return np.where(found > start, found - self._begin, begin)

    def leave(self, now: float, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the seconds until clients that are online leave, shape (K,); inf: never."""
        return self._sessions.running(self._begin + now, clients, _MIDDLE)[1]

    def tasks(self, now: float, t: int, clients: NDArray[np.intp]) -> Work:
        """Return what becomes of tasks of round t that clients get now, who are online, shape (K,)."""
        now += self._begin
        session, until_leaving = self._sessions.running(now, clients, _MIDDLE)
        return self._work(now, t, session, until_leaving, self._deadline or np.inf)

    # What becomes of a task

    def _work(
        self,
        now: float,
        t: int,
        session: NDArray[np.int64],
        until_leaving: NDArray[np.float64],
        deadline: float,
    ) -> Work:
        """Return what becomes of tasks of round t that clients get now, with `deadline` seconds for each.

        The clients are those of K running sessions. `until_leaving` are the seconds until they leave.
        """
        clients = self._sessions.client[session]
        speed = self._speed(t, session, clients)
        upload = np.zeros(len(session)) if self._upload is None else self._upload[session]
        whole = self._steps / speed + upload  # what the whole task takes
        time = np.minimum(until_leaving, deadline)
        seconds = np.minimum(time, whole)
        completion = self._completion(time, upload, speed)
        if self._pause and (cut := np.flatnonzero((completion < 1) & (until_leaving < deadline))).size:
            clients = clients[cut]
            done = self._sessions.moment_after(now, whole[cut], clients) - now
            seconds[cut] = np.minimum(done, deadline)
            if deadline < np.inf:
                time = self._sessions.seconds_online(now, now + deadline, clients)
                completion[cut] = self._completion(time, upload[cut], speed[cut])
            else:
                completion[cut] = done < np.inf  # for the others, the recording ends first
                never, clients = cut[done == np.inf], clients[done == np.inf]
                left = self._sessions.seconds_online(now, np.inf, clients)
                seconds[never] = self._sessions.moment_after(now, left, clients) - now
        return Work(seconds, completion if self._partial else np.floor(completion))

    def _speed(self, t: int, session: NDArray[np.int64], clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the steps per second of clients whose sessions run, for tasks of round t."""
        speed = self._recorded[session]
        if (unknown := np.flatnonzero(np.isnan(speed))).size:
            few = clients[unknown]
            speed[unknown] = (
                self._own[few] if self._speeds is None else self._speeds.drawn(t, few, self._steps)
            )
        if self._speeds is not None:
            speed *= self._speeds.factor[clients]
        speed /= self._cost
        return speed

    def _completion(
        self, time: NDArray[np.float64], upload: NDArray[np.float64], speed: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the fraction of the steps that are done in some seconds, of which the last are an upload."""
        steps = np.floor(speed * np.maximum(time - upload, 0) + _GUARD)
        return np.minimum(steps / self._steps, 1)
