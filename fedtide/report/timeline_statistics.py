"""Statistics of a trace in event time, before training: the rounds that a neutral selection would see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtide.config import Settings
from fedtide.engine.event_clock import EventClock, told
from fedtide.engine.observers import Record
from fedtide.report.event_tasks import EventTasks, Outcome
from fedtide.report.plots import Numbers
from strategies import FlatParameters, Layout, Roster
from strategies.fedavg import FedAvg, FedAvgOptions
from traces import Trace, finished_steps

NAMED = 10  # clients listed


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

    @property
    def hours(self) -> float:
        """The virtual hours."""
        return self.virtual_seconds / 3600


def play(settings: Settings, trace: Trace) -> Iterator[Record]:
    """Yield a record for each round of event time, with what does not depend on the training.

    Clients are selected as FedAvg does, and each round with a reply changes the weights, so that a run of a
    method with that selection has the same rounds. ValueError: the trace has no event time.
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
            "begin": clock.begin,
            "virtual_seconds": clock.now,
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
        if clock.is_over() or 0 < settings.until <= clock.now:
            return


def statistics_of(settings: Settings, records: list[Record], tasks: EventTasks) -> TimelineReport:
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
        never_asked_first=never[:NAMED].tolist(),
    )


def spread(values: Numbers) -> Spread:
    """Return the distribution of some values."""
    if not len(values):
        return Spread(None, None, None, None)
    median, ninetieth = np.percentile(values, (50, 90)).tolist()
    return Spread(float(values.mean()), median, ninetieth, float(values.max()))


def _method(settings: Settings, founders: NDArray[np.bool_]) -> FedAvg:
    """Return FedAvg, which selects clients uniformly."""
    options = FedAvgOptions(
        clients_per_round=settings.clients_per_round, round_ends=settings.round_ends, seed=settings.seed
    )
    nothing = FlatParameters(np.zeros(1), Layout(((1,),), np.dtype(np.float64)))
    return FedAvg(nothing, Roster(np.ones(len(founders), np.int64), founders), options=options)
