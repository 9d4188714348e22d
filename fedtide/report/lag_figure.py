"""Lag and idle places in event time: how stale replies are, and whose, and how many more could be at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.wording import client_name
from fedtide.report import plots
from fedtide.report.event_tasks import EventTasks, Outcome, TimedRun
from fedtide.report.figure import Figure, Plot, Table, Toggle
from fedtide.report.plots import Numbers

MAX_BINS = 60  # of a distribution
MAX_DOTS = 3000  # clients of all runs together
TABLE_ROWS = 200


class ClientLags(NamedTuple):
    """What the tasks of each client came to, in the order of `clients`; shape (N',) each."""

    clients: NDArray[np.intp]  # those with a task
    replies: NDArray[np.int64]  # that counted
    mean: Numbers  # lag of these; NaN without any
    largest: Numbers  # likewise
    seconds: Numbers  # mean of all its tasks
    silent: NDArray[np.int64]  # tasks that brought no reply


def lags_by_client(tasks: EventTasks) -> ClientLags:
    """Return what the tasks of each client came to."""
    clients, place = np.unique(tasks.clients, return_inverse=True)
    n, counted = len(clients), tasks.counted
    replies = np.bincount(place[counted], minlength=n)
    sums = np.bincount(place[counted], tasks.lag[counted], minlength=n)
    largest = np.full(n, -np.inf)
    np.maximum.at(largest, place[counted], tasks.lag[counted])
    known = replies > 0
    mean = np.divide(sums, replies, out=np.full(n, np.nan), where=known)
    silent = (tasks.outcomes == Outcome.DROPPED) | (tasks.outcomes == Outcome.LOST)
    return ClientLags(
        clients,
        replies,
        mean,
        np.where(known, largest, np.nan),
        np.bincount(place, tasks.seconds) / np.bincount(place),
        np.bincount(place[silent], minlength=n),
    )


def lag_figure(runs: Sequence[TimedRun], labels: Sequence[str], notes: Sequence[str] = ()) -> Figure | None:
    """Return the figure of runs in event time, one for each label; None if no reply counted.

    `labels` are all of the page, in order: a label has the same colour in each figure.
    """
    shown = [run for run in runs[: plots.MAX_LINES] if run.tasks.counted.any()]
    if not shown:
        return None
    by_client = [lags_by_client(run.tasks) for run in shown]
    colours = [labels.index(run.name) for run in shown]
    lags = [(run.tasks.lag[run.tasks.counted], np.ones(int(run.tasks.counted.sum()))) for run in shown]
    idle = [(run.tasks.idle, run.tasks.round_ends - run.tasks.round_begins) for run in shown]
    views = {
        "lag": _distribution(shown, colours, lags, "lag of a reply: changes of the weights", "replies, %"),
        "idle": _distribution(shown, colours, idle, "idle places when a round begins", "virtual time, %"),
        "clients": _by_client(shown, colours, by_client),
    }
    names = {"lag": "Lag", "idle": "Idle places", "clients": "Lag by client"}
    return Figure(
        "lag",
        "Lag and idle places",
        "How often the weights changed between a task and its reply, how many more clients could have been "
        "at work, and the mean lag of each client; the table has the clients.",
        views,
        [Toggle("Show", names)],
        legend=plots.legend(labels, [run.name for run in shown]),
        table=_table(shown, by_client),
        notes=[*notes, *(_summary(run, len(shown) > 1) for run in shown)],
        height=360,
    )


def _distribution(
    runs: Sequence[TimedRun],
    colours: Sequence[int],
    values: Sequence[tuple[Numbers, Numbers]],
    over: str,
    title: str,
) -> Plot:
    """Return the shares of whole numbers by weight: bars for one run, lines for several."""
    highest = int(max(of.max(initial=0) for of, _ in values))
    width = highest // MAX_BINS + 1
    data = []
    for run, i, (of, weights) in zip(runs, colours, values, strict=True):
        sums = np.bincount((of // width).astype(np.intp), weights)
        shares = 100 * sums / (sums.sum() or 1)
        x = np.arange(len(shares)) * width
        names = [f"{a} to {a + width - 1}" if width > 1 else str(a) for a in x.tolist()]
        name = f"{plots.plain(run.name)}<br>" if len(runs) > 1 else ""
        more = {"text": names, "legendgroup": run.name, "textposition": "none"}
        hover = f"{name}%{{text}}: %{{y:.3~g}} %"
        if len(runs) == 1:
            bars = {"type": "bar", "width": 0.9 * width, "marker": {"color": plots.colour(i)}}
            data.append(plots.trace(x, shares, hover, **more, **bars))
        else:
            data.append(plots.trace(x, shares, hover, line=plots.line(i), **more))
    horizontal = plots.axis(over, rangemode="tozero", **({"dtick": 1} if highest < 13 else {}))
    vertical = plots.axis(title, rangemode="tozero")
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _by_client(runs: Sequence[TimedRun], colours: Sequence[int], by_client: Sequence[ClientLags]) -> Plot:
    """Return a dot for each client: the mean lag of its replies against the mean seconds of its tasks."""
    most = max(50, MAX_DOTS // len(runs))
    longest = max(float(of.seconds.max()) for of in by_client)
    unit, size = plots.time_unit(longest)
    data = []
    for run, i, of in zip(runs, colours, by_client, strict=True):
        known = np.flatnonzero(of.replies)
        chosen = known[plots.thinned(len(known), most)]
        name = f"{plots.plain(run.name)}<br>" if len(runs) > 1 else ""
        texts = [
            f"{plots.plain(client_name(int(of.clients[k]), run.devices))}, {of.replies[k]} replies"
            for k in chosen.tolist()
        ]
        hover = f"{name}client %{{text}}<br>mean lag %{{y:.3~g}}<br>mean of a task %{{x:.3~g}} {unit}"
        marker = {"color": plots.colour(i), "size": 8 if len(chosen) < 200 else 5, "opacity": 0.6}
        more = {"text": texts, "legendgroup": run.name, "mode": "markers", "marker": marker}
        data.append(plots.trace(of.seconds[chosen] / size, of.mean[chosen], hover, **more))
    horizontal = plots.axis(f"mean of a client's tasks, {unit}", rangemode="tozero")
    vertical = plots.axis("mean lag of its replies", rangemode="tozero")
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _summary(run: TimedRun, several: bool) -> str:
    lag = run.tasks.lag[run.tasks.counted]
    numbers = f"lag: mean {lag.mean():.3g}, median {np.median(lag):.0f}, largest {lag.max():.0f}"
    text = f"{numbers}; of {run.tasks.limit:,} places, {run.tasks.idle_share:.1%} idle."
    return f"{run.name}: {text}" if several else text[0].upper() + text[1:]


def _table(runs: Sequence[TimedRun], by_client: Sequence[ClientLags]) -> Table:
    """Return the clients of each run, the first ones of many."""
    rows = []
    for run, of in zip(runs, by_client, strict=True):
        for k in range(min(len(of.clients), max(10, TABLE_ROWS // len(runs)))):
            lags = [f"{of.mean[k]:.2f}", f"{of.largest[k]:.0f}"] if of.replies[k] else ["", ""]
            numbers = [str(of.replies[k]), *lags, f"{of.seconds[k]:.3f}", str(of.silent[k])]
            client = client_name(int(of.clients[k]), run.devices)
            rows.append([*([run.name] if len(runs) > 1 else []), client, *numbers])
    names = ("client", "replies", "mean lag", "largest lag", "seconds of a task", "without a reply")
    return Table([*(["run with"] if len(runs) > 1 else []), *names], rows)
