"""Event time: a bar for each task; the lag of replies, overall and by client; idle places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtide.base.wording import client_name, duration
from fedtide.engine.history import Numbers
from fedtide.report import plots
from fedtide.report.event_time import EventTasks, Outcome, TimedRun
from fedtide.report.plots import Entry, Figure, Plot, Toggle

MAX_CLIENTS = 30  # of a run
MAX_BARS = 300  # about as many in a part of a run; of more than twice as many, three parts are shown
MAX_LINES = 60  # ends of rounds in a part
MAX_BINS = 60  # of a distribution

COLOURS = {
    Outcome.REPLIED: "#0072B2",
    Outcome.REFUSED: "#7F7F7F",
    Outcome.DROPPED: "#D55E00",
    Outcome.LOST: "#CC79A7",
    Outcome.WITHDRAWN: "#009E73",
    Outcome.OPEN: "#8CCBEF",
}
PARTS = {"beginning": "Beginning", "middle": "Middle", "end": "End"}


def gantt_figure(runs: Sequence[TimedRun], notes: Sequence[str] = ()) -> Figure | None:
    """Return the bars of the tasks of runs in event time, equal ones once; None if there are none."""
    different, left_out = plots.merged(
        ((run.name, run) for run in runs if len(run.tasks.clients)), _are_equal
    )
    shown = [run._replace(name=name) for name, run in different.items()]
    if not shown:
        return None
    clients = [_sample(run.tasks) for run in shown]
    windows = [_windows(run.tasks, own) for run, own in zip(shown, clients, strict=True)]
    parts = {key: name for key, name in PARTS.items() if any(key in own for own in windows)}
    toggles = [
        Toggle("Run with", {str(i): run.name for i, run in enumerate(shown)}),
        Toggle("Part", parts),
    ]

    def draw(run: str, part: str) -> Plot:
        i = int(run)
        return _bars(shown[i], clients[i], windows[i].get(part, windows[i]["beginning"]))

    views = plots.views(toggles, draw)
    drawn = {bars["legendgroup"] for view in views.values() for bars in view["data"]}
    used = [outcome for outcome in Outcome if outcome.name.lower() in drawn]
    lines = any("shapes" in view["layout"] for view in views.values())
    return Figure(
        "gantt",
        "Clients at work",
        f"A bar for each task, from the moment it is given to its end, for up to {MAX_CLIENTS} clients; "
        "the table has the tasks.",
        views,
        toggles,
        legend=[Entry(o.shown, COLOURS[o], group=o.name.lower(), is_area=True) for o in used],
        table=plots.table_of(
            ["client", "begin, s", "end, s", "task of round", "ended in round", "lag", "outcome"],
            {run.name: _task_rows(run) for run in shown},
            "run with",
        ),
        notes=[*notes, *_notes(shown, clients, len(parts) > 1, lines), *left_out],
        height=110 + 18 * max(4, *map(len, clients)),
    )


def _are_equal(a: TimedRun, b: TimedRun) -> bool:
    return all(
        np.array_equal(getattr(a.tasks, key), getattr(b.tasks, key)) for key in ("clients", "end", "outcomes")
    )


def _sample(tasks: EventTasks) -> NDArray[np.intp]:
    """Return the clients by the mean seconds of their tasks, the fastest first; of many an even sample."""
    of = lags_by_client(tasks)
    return of.clients[np.argsort(of.seconds, kind="stable")[plots.thinned(len(of.clients), MAX_CLIENTS)]]


def _windows(tasks: EventTasks, clients: NDArray[np.intp]) -> dict[str, tuple[float, float]]:
    """Return the begin and end of each part; a run with few tasks has only a beginning: the whole run."""
    begins = np.sort(tasks.begin[np.isin(tasks.clients, clients)])
    first, last = float(tasks.round_begins[0]), float(tasks.round_ends[-1])
    if len(begins) <= 2 * MAX_BARS:
        return {"beginning": (first, last)}
    middle = (len(begins) - MAX_BARS) // 2
    return {
        "beginning": (first, float(begins[MAX_BARS])),
        "middle": (float(begins[middle]), float(begins[middle + MAX_BARS])),
        "end": (float(begins[-MAX_BARS]), last),
    }


def _bars(run: TimedRun, clients: NDArray[np.intp], window: tuple[float, float]) -> Plot:
    tasks, (first, last) = run.tasks, window
    unit, size = plots.time_unit(last)
    rows = {client: row for row, client in enumerate(clients.tolist())}
    inside = np.isin(tasks.clients, clients) & (tasks.end >= first) & (tasks.begin <= last)
    data = []
    for outcome, colour in COLOURS.items():
        chosen = np.flatnonzero(inside & (tasks.outcomes == outcome))
        if len(chosen):
            bars = {
                **{"type": "bar", "orientation": "h", "width": 0.7, "textposition": "none"},
                "base": plots.numbers(tasks.begin[chosen] / size, 8),
                "x": plots.numbers(tasks.seconds[chosen] / size),
                "y": [rows[client] for client in tasks.clients[chosen].tolist()],
                "marker": {"color": colour, "line": {"width": 0.5, "color": "rgba(255,255,255,0.7)"}},
                "text": [_hover(run, i) for i in chosen.tolist()],
                "hovertemplate": f"%{{text}}<br>{outcome.shown}<extra></extra>",
                "legendgroup": outcome.name.lower(),
            }
            data.append(bars)
    vertical = plots.axis("client", range=[len(rows) - 0.4, -0.6], showgrid=False)
    vertical |= plots.client_ticks(range(len(rows)), rows, run.devices)
    horizontal = plots.axis(f"virtual time, {unit}", range=[first / size, last / size])
    made = plots.layout(xaxis=horizontal, yaxis=vertical, barmode="overlay")
    ends = np.unique(tasks.round_ends[(tasks.round_ends >= first) & (tasks.round_ends <= last)])
    if len(ends) <= MAX_LINES:
        style = {"type": "line", "layer": "below", "line": {"width": 1, "color": "rgba(140,146,153,0.55)"}}
        place = {"yref": "paper", "y0": 0, "y1": 1}
        made["shapes"] = [style | place | {"x0": x, "x1": x} for x in plots.numbers(ends / size, 8)]
    return {"data": data, "layout": made}


def _hover(run: TimedRun, i: int) -> str:
    tasks = run.tasks
    client = plots.plain(f"client {client_name(int(tasks.clients[i]), run.devices)}")
    lag = f", lag {tasks.lag[i]:.0f}" if tasks.counted[i] else ""
    rounds = f"task of round {tasks.given[i]}, ended in round {tasks.ended[i]}{lag}"
    return f"{client}<br>{rounds}<br>{duration(float(tasks.seconds[i]))}"


def _notes(
    runs: Sequence[TimedRun], clients: Sequence[NDArray[np.intp]], in_parts: bool, lines: bool
) -> list[str]:
    """Describe samples and parts."""
    totals = [len(np.unique(run.tasks.clients)) for run in runs]
    notes = ["Clients are in the order of the mean seconds of their tasks, the fastest on top."]
    if any(total > len(own) for total, own in zip(totals, clients, strict=True)):
        number = " or ".join(sorted({f"{total:,}" for total in totals}))
        notes.append(f"An even sample of {MAX_CLIENTS} of the {number} clients with a task is shown.")
    if in_parts:
        number = " or ".join(sorted({f"{len(run.tasks.clients):,}" for run in runs}))
        notes.append(f"Of {number} tasks, each part shows about {MAX_BARS}.")
    if lines:
        notes.append("Vertical lines are the ends of rounds.")
    return notes


def _task_rows(run: TimedRun) -> Iterator[list[str]]:
    tasks = run.tasks
    for i, client in enumerate(tasks.clients.tolist()):
        yield [
            client_name(client, run.devices),
            *(f"{moment:.3f}" for moment in (tasks.begin[i], tasks.end[i])),
            *(str(number) for number in (tasks.given[i], tasks.ended[i])),
            f"{tasks.lag[i]:.0f}" if tasks.counted[i] else "",
            Outcome(tasks.outcomes[i]).shown,
        ]


class ClientLags(NamedTuple):
    """Replies, lags and seconds by client, in the order of `clients`; shape (N',) each."""

    clients: NDArray[np.intp]  # those with a task
    replies: NDArray[np.int64]  # that counted
    mean: Numbers  # lag of these; NaN without any
    largest: Numbers  # likewise
    seconds: Numbers  # mean of all its tasks
    silent: NDArray[np.int64]  # tasks that brought no reply


def lags_by_client(tasks: EventTasks) -> ClientLags:
    """Summarize the tasks of each client."""
    clients, place = np.unique(tasks.clients, return_inverse=True)
    n, counted = len(clients), tasks.counted
    replies = np.bincount(place[counted], minlength=n)
    sums = np.bincount(place[counted], tasks.lag[counted], minlength=n)
    largest = np.full(n, np.nan)
    np.fmax.at(largest, place[counted], tasks.lag[counted])
    silent = (tasks.outcomes == Outcome.DROPPED) | (tasks.outcomes == Outcome.LOST)
    return ClientLags(
        clients,
        replies,
        plots.ratios(sums, replies),
        largest,
        np.bincount(place, tasks.seconds) / np.bincount(place),
        np.bincount(place[silent], minlength=n),
    )


def lag_figure(runs: Sequence[TimedRun], labels: Sequence[str], notes: Sequence[str] = ()) -> Figure | None:
    """Return the lags and idle places of runs in event time; None if no reply counted.

    `labels` are all of the page, in order: a label has the same colour in each figure.
    """
    shown = {
        labels.index(run.name): run for run in runs[: plots.MAX_LINES] if run.tasks.counted.any()
    }  # by colour
    if not shown:
        return None
    by_client = {i: lags_by_client(run.tasks) for i, run in shown.items()}
    tasks = {i: run.tasks for i, run in shown.items()}
    lags = {i: (own.lag[own.counted], np.ones(own.counted.sum())) for i, own in tasks.items()}
    idle = {i: (own.idle, own.round_ends - own.round_begins) for i, own in tasks.items()}
    return Figure(
        "lag",
        "Lag and idle places",
        "How often the weights changed between a task and its reply, how many more clients could have been "
        "at work, and the mean lag of each client; the table has the clients.",
        {
            "lag": _distribution(shown, lags, "lag of a reply: changes of the weights", "replies, %"),
            "idle": _distribution(shown, idle, "idle places when a round begins", "virtual time, %"),
            "clients": _by_client(shown, by_client),
        },
        [Toggle("Show", {"lag": "Lag", "idle": "Idle places", "clients": "Lag by client"})],
        legend=plots.legend(labels, [run.name for run in shown.values()]),
        table=plots.table_of(
            ["client", "replies", "mean lag", "largest lag", "seconds of a task", "without a reply"],
            {run.name: _client_rows(run, by_client[i]) for i, run in shown.items()},
            "run with",
        ),
        notes=[*notes, *(_summary(run, len(shown) > 1) for run in shown.values())],
        height=360,
    )


def _distribution(
    runs: Mapping[int, TimedRun], values: Mapping[int, tuple[Numbers, Numbers]], over: str, title: str
) -> Plot:
    """Return the shares of whole numbers by weight: bars for one run, lines for several."""
    highest = int(max(of.max(initial=0) for of, _ in values.values()))
    width = highest // MAX_BINS + 1
    data = []
    for i, run in runs.items():
        of, weights = values[i]
        sums = np.bincount((of // width).astype(np.intp), weights)
        shares = 100 * sums / (sums.sum() or 1)
        x = np.arange(len(shares)) * width
        names = [f"{a} to {a + width - 1}" if width > 1 else str(a) for a in x.tolist()]
        more: Plot = {"text": names, "legendgroup": run.name, "textposition": "none"}
        if len(runs) == 1:
            more |= {"type": "bar", "width": 0.9 * width, "marker": {"color": plots.colour(i)}}
        else:
            more |= {"line": plots.line(i)}
        data.append(plots.trace(x, shares, f"{_prefix(run, runs)}%{{text}}: %{{y:.3~g}} %", **more))
    horizontal = plots.axis(over, rangemode="tozero", **({"dtick": 1} if highest < 13 else {}))
    vertical = plots.axis(title, rangemode="tozero")
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _by_client(runs: Mapping[int, TimedRun], by_client: Mapping[int, ClientLags]) -> Plot:
    """Return a dot for each client: the mean lag of its replies against the mean seconds of its tasks."""
    unit, size = plots.time_unit(max(float(of.seconds.max()) for of in by_client.values()))
    data = []
    for i, run in runs.items():
        of = by_client[i]
        known = np.flatnonzero(of.replies)
        chosen = known[plots.sample(len(known), len(runs))]
        texts = [
            f"{plots.plain(client_name(int(of.clients[k]), run.devices))}, {of.replies[k]} replies"
            for k in chosen.tolist()
        ]
        hover = "client %{text}<br>mean lag %{y:.3~g}<br>mean of a task %{x:.3~g}"
        marker = plots.dots(i, len(chosen), 0.6)
        more = {"text": texts, "legendgroup": run.name, "mode": "markers", "marker": marker}
        x = of.seconds[chosen] / size
        data.append(plots.trace(x, of.mean[chosen], f"{_prefix(run, runs)}{hover} {unit}", **more))
    horizontal = plots.axis(f"mean of a client's tasks, {unit}", rangemode="tozero")
    vertical = plots.axis("mean lag of its replies", rangemode="tozero")
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _prefix(run: TimedRun, runs: Mapping[int, TimedRun]) -> str:
    return f"{plots.plain(run.name)}<br>" if len(runs) > 1 else ""


def _summary(run: TimedRun, several: bool) -> str:
    lag = run.tasks.lag[run.tasks.counted]
    numbers = f"lag: mean {lag.mean():.3g}, median {np.median(lag):.0f}, largest {lag.max():.0f}"
    text = f"{numbers}; of {run.tasks.limit:,} places, {run.tasks.idle_share:.1%} idle."
    return f"{run.name}: {text}" if several else text[0].upper() + text[1:]


def _client_rows(run: TimedRun, of: ClientLags) -> Iterator[list[str]]:
    for k, client in enumerate(of.clients.tolist()):
        lags = [f"{of.mean[k]:.2f}", f"{of.largest[k]:.0f}"] if of.replies[k] else ["", ""]
        numbers = [str(of.replies[k]), *lags, f"{of.seconds[k]:.3f}", str(of.silent[k])]
        yield [client_name(client, run.devices), *numbers]
