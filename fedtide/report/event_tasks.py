"""The tasks of a run in event time: who was at work from when to when, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.engine.observers import Record
from fedtide.report.participation import BY_REASON, State
from fedtide.report.plots import Numbers


class Outcome(IntEnum):
    """What became of a task."""

    REPLIED = 0  # the reply arrived, and counted
    REFUSED = 1  # it arrived, and did not count
    DROPPED = 2  # no reply: the client left, or failed
    LOST = 3  # the client did its work, but the reply never arrived
    WITHDRAWN = 4  # the client departed from the objective, and nobody waited any more
    OPEN = 5  # the client was still at work when the run ended

    @property
    def shown(self) -> str:
        """Its name for readers."""
        return "at work at the end" if self is Outcome.OPEN else self.name.lower()


@dataclass(frozen=True)
class EventTasks:
    """K tasks of a run in event time, in the order in which they ended, and its T rounds.

    Times are virtual seconds.
    """

    limit: int  # C, the most clients that are at work at a time
    clients: NDArray[np.intp]  # shape (K,), as the next six
    given: NDArray[np.intp]  # the round in which the client was asked
    ended: NDArray[np.intp]  # the round in which the task ended; of open ones the last round
    begin: Numbers
    end: Numbers
    outcomes: NDArray[np.int8]
    lag: Numbers  # how often the weights changed meanwhile; NaN where no reply counted
    round_begins: Numbers  # shape (T,), as the next two
    round_ends: Numbers
    idle: Numbers  # how many more clients could have been at work, once a round had begun

    @property
    def seconds(self) -> Numbers:
        """How long each task took, shape (K,)."""
        return self.end - self.begin

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which tasks brought a reply that counted, shape (K,)."""
        return np.asarray(self.outcomes == Outcome.REPLIED)

    @property
    def idle_share(self) -> float:
        """The share of the limit that is idle when rounds begin, weighted by their seconds."""
        seconds = self.round_ends - self.round_begins
        return float(np.average(self.idle, weights=seconds if seconds.any() else None)) / self.limit


class TimedRun(NamedTuple):
    """The tasks of a run in event time, and the devices of its clients, see `Trace`."""

    name: str
    tasks: EventTasks
    devices: Sequence[str] = ()


def tasks_of(records: Sequence[Record], limit: int) -> EventTasks | None:
    """Return the tasks of a run, at most `limit` at a time, from its records; None if not in event time."""
    rounds: list[tuple[float, float, float]] = []
    found: list[tuple[float, ...]] = []
    asked: dict[int, tuple[int, float]] = {}  # clients at work: the round and the moment of their tasks

    def note(client: int, t: int, moment: float, outcome: Outcome, lag: float = np.nan) -> None:
        if client in asked:
            given, begin = asked.pop(client)
            found.append((client, given, t, begin, moment, outcome, lag))

    t, end = 0, 0.0
    for record in records:
        if record.get("begin") is None or record.get("virtual_seconds") is None:
            continue
        t, begin, end = record["round"], record["begin"], record["virtual_seconds"]
        rounds.append((begin, end, record.get("idle") or 0))
        for client, _ in record.get("withdrawn") or ():
            note(client, t, begin, Outcome.WITHDRAWN)
        leaving = {event.get("client") for event in record.get("events") or () if _is_farewell(event)}
        asked |= {client: (t, begin) for client in record.get("selected") or () if client not in leaving}
        active, failed = {*(record.get("active") or ())}, record.get("failed") or {}
        lags = {late.get("client"): late.get("lag") or 0 for late in record.get("late") or ()}
        for client, _, moment in record.get("replied") or ():
            if client in active:
                note(client, t, moment, Outcome.REPLIED, lags.get(client, 0))
            else:
                note(client, t, moment, Outcome.REFUSED)
        for client, _, moment in record.get("dropped") or ():
            lost = BY_REASON.get(failed.get(str(client), "")) == State.LOST
            note(client, t, moment, Outcome.LOST if lost else Outcome.DROPPED)
    if not rounds:
        return None
    for client in [*asked]:
        note(client, t, end, Outcome.OPEN)
    clients, given, ended, begins, moments, outcomes, lag = np.array(found, np.float64).reshape(-1, 7).T
    round_begins, round_ends, idle = np.array(rounds, np.float64).T
    return EventTasks(
        limit=limit,
        clients=clients.astype(np.intp),
        given=given.astype(np.intp),
        ended=ended.astype(np.intp),
        begin=begins,
        end=moments,
        outcomes=outcomes.astype(np.int8),
        lag=lag,
        round_begins=round_begins,
        round_ends=round_ends,
        idle=idle,
    )


def _is_farewell(event: Record) -> bool:
    """Whether a client was asked for the state that it keeps, which is no task."""
    return event.get("event") == "farewell"
