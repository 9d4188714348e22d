"""The clock of event time: who is at work until when, and with whose reply a round ends.

A round ends with the B-th reply, whichever task it answers, and the next one begins at that moment. It ends
earlier if nobody is at work any more. What becomes of a task is settled when it is given, as the trace knows
how long its client stays; the server, which does not, waits until the client has left. Nothing is trained
here.

Moments are microseconds from the beginning of the trace; records and checkpoints have seconds.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedtide.base.errors import SettingsError
from fedtide.engine.availability import RoundClock
from strategies import Forecast
from strategies.core.state import StateDict, Stateful
from traces import RoundAvailability, Trace
from traces.base import NEVER, SECOND, in_seconds, microseconds
from traces.clock import Tasks
from traces.compose import timeline
from traces.recorded.device_run import DeviceRun


class OpenTask(NamedTuple):
    """A task that has not ended; tasks are in the order of their ends, then of their clients."""

    end: int  # when its reply arrives or, if there is none, its client is free
    client: int
    round: int  # in which it was given
    begin: int
    completion: float  # share of its steps that is done by then; 0: the client drops out
    lost: bool  # whether its reply is lost

    @property
    def replies(self) -> bool:
        return self.completion > 0 and not self.lost

    @property
    def why_silent(self) -> str:
        return "reply lost" if self.completion else "dropped in mid-round"

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / SECOND


def told(
    ended: Sequence[OpenTask],
    withdrawn: Sequence[OpenTask],
    stopped: Sequence[OpenTask] = (),
    begin: int = 0,
) -> dict[str, Any]:
    """Return a record's entries for the tasks that ended in its round, or at its `begin` were called off."""
    lost = [(task.client, task.round, (begin - task.begin) / SECOND) for task in stopped]
    return {
        "replied": [(task.client, task.round, task.end / SECOND) for task in ended if task.replies],
        "dropped": [(task.client, task.round, task.end / SECOND) for task in ended if not task.replies],
        "withdrawn": [(task.client, task.round) for task in withdrawn],
        **({"stopped": lost} if lost else {}),
    }


class EventClock(Stateful):
    """The rounds of a run in event time.

    Parameters
    ----------
    trace
        Who is online when, and how fast. ValueError: it has rounds only, or nobody is ever online.
    replies
        B, the replies that end a round.

    Attributes
    ----------
    begin, now
        When the present round began, and when it ended; until that is known, `now` is `begin`.
    tasks
        Those that have not ended, in order.
    """

    saved = ("begin", "now", "_round", "tasks")

    def __init__(self, trace: Trace, replies: int) -> None:
        self.replies, self.timeline = replies, timeline(trace)
        self._start(trace)

    def _start(self, trace: Trace) -> None:
        self.trace, self.now = trace, 0
        self.tasks: list[OpenTask] = []
        self._round = 0
        self.now = self._first_moment(1)
        if self.now >= NEVER:
            raise SettingsError("trace: no member is ever online, so that no round can begin")
        self.begin = self.now
        self._there = self._before = self._availability(1, self.now)
        self.first = self._there

    # See `Clock`

    def round(self, t: int) -> RoundAvailability:
        """Return the members that are online when a round begins, at work or not.

        It is the present round, the one before it or, if the present one is over, the next, which so begins:
        at once or, if nobody is at work or online, when somebody comes.
        """
        if t == self._round + 1:
            self._before, self._round = self._there, t
            if not self.tasks:
                self.now = self._first_moment(t)
            self.begin = self.now
            self._there = self._availability(t, self.now)
        return self._there if t == self._round else self._before

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return False for all, shape (N,): lost replies belong to tasks here, see `OpenTask`."""
        return np.zeros(len(self._there.member), np.bool_)

    def seconds(self, t: int) -> float:
        """Return the end of the present round, t."""
        return self.now / SECOND

    def work_seconds(self, t: int, clients: NDArray[np.intp]) -> None:
        """Return None: how long a task took is known when its reply arrives."""

    def is_over(self) -> bool:
        """Whether no client is at work, and none will be online again."""
        return not self.tasks and self._first_moment(self._round + 1) >= NEVER

    @property
    def forecast(self) -> Forecast | None:
        """What the trace knows: this clock."""
        return self

    def elapsed(self, t: int) -> float:
        """Return the duration of the present round, t."""
        return (self.now - self.begin) / SECOND

    def leave(self, t: int, clients: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the time that clients stay after the beginning of the present round, t, shape (K,)."""
        return in_seconds(self.timeline.clock.leave(self.begin, clients)) - self.begin / SECOND

    # The tasks of a round

    def give(self, clients: NDArray[np.intp]) -> None:
        """Give tasks of the present round to clients that are online and not at work, shape (K,)."""
        found = self._outcome(clients)
        lost = self.trace.lost(self._round)[clients]
        columns = (found.moment, clients, found.completion, lost)
        for end, client, completion, is_lost in zip(*(c.tolist() for c in columns), strict=True):
            insort(self.tasks, OpenTask(end, client, self._round, self.now, completion, is_lost))

    def withdraw(self, clients: Collection[int]) -> list[OpenTask]:
        """Take back, and return, the tasks of some clients, for whom nobody waits any more."""
        if not clients:
            return []
        withdrawn = [task for task in self.tasks if task.client in clients]
        self.tasks = [task for task in self.tasks if task.client not in clients]
        return withdrawn

    def fail(self, clients: Collection[int]) -> None:
        """Have clients drop out when their tasks end, as they cannot do them."""
        self.tasks = [t._replace(completion=0.0) if t.client in clients else t for t in self.tasks]

    def ending(self) -> list[OpenTask]:
        """Return the tasks that end with the present round: up to the B-th reply, and those of its moment."""
        return self.tasks[: bisect_right(self.tasks, self._last_moment(), key=lambda task: task.end)]

    def end(self) -> list[OpenTask]:
        """End the present round, and return the tasks that end with it."""
        ended = self.ending()
        self.tasks = self.tasks[len(ended) :]
        if ended:
            self.now = ended[-1].end
        return ended

    # Resuming

    def state_dict(self) -> StateDict:
        """Return beginning and end of the present round, and the open tasks, in seconds."""
        tasks = [(t.end / SECOND, t.client, t.round, t.begin / SECOND, *t[4:]) for t in self.tasks]
        return super().state_dict() | {
            "begin": self.begin / SECOND,
            "now": self.now / SECOND,
            "tasks": tasks,
        }

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.begin, self.now = microseconds([self.begin, self.now]).tolist()
        tasks = (OpenTask(*task) for task in self.tasks)
        self.tasks = [
            t._replace(end=int(microseconds(t.end)), begin=int(microseconds(t.begin))) for t in tasks
        ]
        self._there = self._availability(self._round or 1, self.begin)

    # Details

    def _outcome(self, clients: NDArray[np.intp]) -> Tasks:
        return self.timeline.clock.tasks(self.now, self._round, clients)

    def _last_moment(self) -> int:
        """Return that of the B-th reply of those at work; `NEVER`: there are fewer, and all of them end."""
        replies = (task.end for task in self.tasks if task.replies)
        return next(islice(replies, self.replies - 1, None), NEVER)

    def _availability(self, t: int, now: int) -> RoundAvailability:
        """Return the availability in round t if it begins now."""
        return self.timeline.availability(t, now)

    def _first_moment(self, t: int) -> int:
        """Return the first moment from now on at which a member is online, if round t then begins."""
        begin, end = self.timeline.membership.window(t)
        moments = self.timeline.clock.next_online(np.maximum(begin, self.now))
        return int(np.where(moments < end, moments, NEVER).min(initial=NEVER))


class ReplayedClock(EventClock):
    """The rounds of a run on devices in event time, as they were: who could be asked, and when they ended.

    ValueError: in that run, another number of replies ended a round, or none did.
    """

    def __init__(self, run: DeviceRun, replies: int) -> None:
        if run.round_ends != replies:
            there = f"round-ends={run.round_ends}" if run.round_ends else "without round-ends"
            raise SettingsError(
                f"trace run: round-ends is {replies}, but that run was {there}, and its rounds end as they "
                "ended there: set the same, or leave it out for a replay by rounds"
            )
        self.run = run
        self._start(run)

    @property
    def forecast(self) -> None:
        """Return None: nobody knew how long a device would stay."""

    def lost(self, t: int) -> NDArray[np.bool_]:
        """Return the clients that left without handing in their states, shape (N,)."""
        return self.run.lost(t)

    def end(self) -> list[OpenTask]:
        """End the present round when it ended, and return the tasks that ended with it."""
        ended = super().end()
        self.now = self._last_moment()
        return ended

    def _outcome(self, clients: NDArray[np.intp]) -> Tasks:
        return self.run.tasks(self._round, clients)

    def _last_moment(self) -> int:
        return self.run.ends(self._round)

    def _availability(self, t: int, now: int) -> RoundAvailability:
        return self.run.round(t)

    def _first_moment(self, t: int) -> int:
        return NEVER if self.run.is_over(t) else self.now


Clock = RoundClock | EventClock
"""When rounds begin and end in virtual time, and who is there then."""


def make_clock(trace: Trace, round_ends: int) -> Clock:
    """Return the clock of event time, or that of the trace's rounds; see the setting `round_ends`."""
    if not round_ends:
        return RoundClock(trace)
    if trace.role == "run":
        return ReplayedClock(cast(DeviceRun, trace), round_ends)
    return EventClock(trace, round_ends)
