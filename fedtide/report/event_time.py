"""Event time: the tasks of the clients, their times and outcomes; the statistics of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.wording import count, duration
from fedtide.config import Settings
from fedtide.engine.client_states import BY_REASON, State
from fedtide.engine.event_clock import EventClock, told
from fedtide.engine.history import Numbers
from fedtide.engine.observers import Record
from fedtide.report.trace_statistics import MOST_NAMED, Line, never
from strategies import FlatParameters, Layout, Roster
from strategies.fedavg import FedAvg, FedAvgOptions
from traces import Trace, finished_steps
from traces.base import SECOND


class Outcome(IntEnum):
    """How a task ended."""

    REPLIED = 0  # the reply arrived, and counted
    REFUSED = 1  # it arrived, and did not count
    DROPPED = 2  # no reply: the client left, or failed
    LOST = 3  # the client did its work, but the reply never arrived
    WITHDRAWN = 4  # nobody waited any more: its client departed from the objective, or it became too old
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
        for client, *_ in (*(record.get("withdrawn") or ()), *(record.get("stopped") or ())):
            note(client, t, begin, Outcome.WITHDRAWN)
        events = record.get("events") or ()  # a client that is asked for its state alone has no task
        leaving = {event.get("client") for event in events if event.get("event") == "farewell"}
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
    table = np.array(found, np.float64).reshape(-1, 7).T
    clients, given, ended = table[:3].astype(np.intp)
    begins, moments, codes, lag = table[3:]
    outcomes, of_rounds = codes.astype(np.int8), np.array(rounds, np.float64).T
    return EventTasks(limit, clients, given, ended, begins, moments, outcomes, lag, *of_rounds)


def play(settings: Settings, trace: Trace) -> Iterator[Record]:
    """Yield a record for each round of event time, without the results of training.

    Clients are selected as FedAvg does, and each round with a reply changes the weights, so that a run of a
    method with that selection, and without `stop-late`, has the same rounds. ValueError: the trace has no
    event time.
    """
    clock = EventClock(trace, settings.round_ends)
    limit = settings.most_clients
    method = _method(settings, clock.first.member)
    version, given = 0, dict[int, int]()  # by client, the version that it works on
    for t in range(1, settings.num_rounds + 1):
        there = clock.round(t)
        at_work = np.array([task.client for task in clock.tasks], np.intp)
        withdrawn = clock.withdraw({*at_work[~there.member[at_work]].tolist()})
        method.round, method.at_work = t, len(clock.tasks)
        asked = method.select(np.setdiff1d(np.flatnonzero(there.online), at_work))
        given |= dict.fromkeys(asked.tolist(), version)
        clock.give(asked)
        idle = limit - len(clock.tasks)
        ended = clock.end()
        replied = sorted((task for task in ended if task.replies), key=lambda task: task.client)
        completion = np.array([task.completion for task in replied])
        yield {
            "round": t,
            "begin": clock.begin / SECOND,
            "virtual_seconds": clock.now / SECOND,
            "members": int(there.member.sum()),
            "online": int(there.online.sum()),
            "selected": asked.tolist(),
            "at_work": sorted(at_work.tolist()),
            "active": [task.client for task in replied],
            "steps": finished_steps(completion, settings.local_steps).tolist(),
            "failed": {str(task.client): task.why_silent for task in ended if not task.replies},
            "late": [
                {"client": task.client, "task": task.round, "lag": version - given[task.client]}
                for task in replied
                if task.round < t
            ],
            "idle": idle,
            **told(ended, withdrawn),
        }
        version += bool(replied)
        if clock.is_over() or 0 < settings.until <= clock.now / SECOND:
            return


def _method(settings: Settings, founders: NDArray[np.bool_]) -> FedAvg:
    options = FedAvgOptions(
        clients_per_round=settings.clients_per_round, round_ends=settings.round_ends, seed=settings.seed
    )
    nothing = FlatParameters(np.zeros(1), Layout(((1,),), np.dtype(np.float64)))
    return FedAvg(nothing, Roster(np.ones(len(founders), np.int64), founders), options=options)


@dataclass(frozen=True)
class Spread:
    """The distribution of a quantity; all are None if there is nothing to measure."""

    mean: float | None
    median: float | None
    ninetieth: float | None  # percentile
    largest: float | None


@dataclass(frozen=True)
class TimelineReport:
    """The statistics of a trace in event time, for a selection that is uniform."""

    num_clients: int
    limit: int  # C, the most clients that are at work at a time
    replies_per_round: int  # B
    num_rounds: int  # that there were
    virtual_seconds: float
    online: list[float | None]  # share of the members when each round begins; None without members
    replies: int
    incomplete: int  # replies with a part of the steps
    dropped: int
    lost: int
    withdrawn: int
    at_work: int  # when the last round ends
    idle: float  # see `EventTasks.idle_share`
    lag: Spread
    task_seconds: Spread  # of tasks that brought a reply
    never_asked: int
    never_asked_first: list[int]  # some of them


def statistics_of(settings: Settings, records: Sequence[Record], tasks: EventTasks) -> TimelineReport:
    """Return the statistics of rounds that `play` returned, and of their tasks."""
    n, planned = settings.num_clients, settings.local_steps
    counts = np.bincount(tasks.outcomes, minlength=len(Outcome)).tolist()
    never = np.setdiff1d(np.arange(n), tasks.clients)
    return TimelineReport(
        num_clients=n,
        limit=tasks.limit,
        replies_per_round=settings.round_ends,
        num_rounds=len(records),
        virtual_seconds=float(tasks.round_ends[-1]),
        online=[r["online"] / r["members"] if r["members"] else None for r in records],
        replies=counts[Outcome.REPLIED],
        incomplete=sum(steps < planned for record in records for steps in record["steps"]),
        dropped=counts[Outcome.DROPPED],
        lost=counts[Outcome.LOST],
        withdrawn=counts[Outcome.WITHDRAWN],
        at_work=counts[Outcome.OPEN],
        idle=tasks.idle_share,
        lag=spread(tasks.lag[tasks.counted]),
        task_seconds=spread(tasks.seconds[tasks.counted]),
        never_asked=len(never),
        never_asked_first=never[:MOST_NAMED].tolist(),
    )


def spread(values: Numbers) -> Spread:
    """Return the distribution of some values."""
    if not len(values):
        return Spread(None, None, None, None)
    median, ninetieth = np.percentile(values, (50, 90)).tolist()
    return Spread(float(values.mean()), median, ninetieth, float(values.max()))


def describe_timeline(report: TimelineReport, devices: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines of the summary, each a name and a text; `devices` are those of the clients."""
    yield "virtual time", duration(report.virtual_seconds)
    yield "rounds", f"{report.num_rounds:,}{_rate(report.num_rounds, report)}"
    incomplete = f", {report.incomplete / report.replies:.1%} of them incomplete" if report.replies else ""
    yield "replies", f"{report.replies:,}{_rate(report.replies, report)}{incomplete}"
    numbers = {"dropped": report.dropped, "lost": report.lost, "withdrawn": report.withdrawn}
    numbers["at work at the end"] = report.at_work
    others = [f"{number:,} {name}" for name, number in numbers.items() if number]
    yield "other tasks", ", ".join(others) or "none"
    if report.lag.mean is not None:
        yield "lag", f"changes of the weights per reply: {_distribution(report.lag, '{:.3g}'.format)}"
        yield "seconds", f"of a task with a reply: {_distribution(report.task_seconds, duration)}"
    places = count(report.limit, "place")
    yield "idle", f"{report.idle:.1%} of the {places} when rounds begin, by their seconds"
    shares = [share for share in report.online if share is not None]
    if shares:
        yield "online", f"{sum(shares) / len(shares):.1%} of the members when rounds begin"
    yield "never asked", never(report.never_asked, report.never_asked_first, devices)


def _rate(number: int, report: TimelineReport) -> str:
    if not report.virtual_seconds:
        return ""
    rate = number / (report.virtual_seconds / 3600)
    return f", {f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} per virtual hour"


def _distribution(spread: Spread, shown: Any) -> str:
    names = {"mean": "mean", "median": "median", "ninetieth": "90th percentile", "largest": "largest"}
    return ", ".join(f"{name} {shown(getattr(spread, key))}" for key, name in names.items())
