"""The clients at work in event time: a bar for each task, from the moment it is given to its end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.wording import client_name, count, duration
from fedtide.report import plots
from fedtide.report.event_tasks import EventTasks, Outcome, TimedRun
from fedtide.report.figure import Entry, Figure, Plot, Table, Toggle

MAX_RUNS = 6
MAX_CLIENTS = 30  # of a run
MAX_BARS = 300  # about as many in a part of a run; of more than twice as many, three parts are shown
MAX_LINES = 60  # ends of rounds in a part
TABLE_ROWS = 500

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
    """Return the figure of runs in event time, equal ones once; None if there are none."""
    every = plots.merged(((run.name, run) for run in runs if len(run.tasks.clients)), _are_equal)
    shown = [run._replace(name=name) for name, run in every[:MAX_RUNS]]
    if not shown:
        return None
    clients = [_clients(run.tasks) for run in shown]
    windows = [_windows(run.tasks, own) for run, own in zip(shown, clients, strict=True)]
    parts = {key: name for key, name in PARTS.items() if any(len(own) > 1 for own in windows)}
    views = {
        "|".join([*([str(i)] if len(shown) > 1 else []), *([part] if parts else [])]): _view(
            run, clients[i], windows[i].get(part, windows[i]["beginning"])
        )
        for i, run in enumerate(shown)
        for part in parts or ["beginning"]
    }
    names = {str(i): run.name for i, run in enumerate(shown)}
    toggles = [Toggle("Run with", names), Toggle("Part", parts)]
    drawn = {bars["legendgroup"] for view in views.values() for bars in view["data"]}
    used = [outcome for outcome in Outcome if outcome.name.lower() in drawn]
    return Figure(
        "gantt",
        "Clients at work",
        f"A bar for each task, from the moment it is given to its end, for up to {MAX_CLIENTS} clients; "
        "the table has the tasks.",
        views,
        [toggle for toggle in toggles if len(toggle.options) > 1],
        legend=[Entry(o.shown, COLOURS[o], group=o.name.lower(), is_area=True) for o in used],
        table=_table(shown),
        notes=[*notes, *_notes(shown, clients, [*views.values()], len(every))],
        height=110 + 18 * max(4, *map(len, clients)),
    )


def _are_equal(a: TimedRun, b: TimedRun) -> bool:
    return all(
        np.array_equal(getattr(a.tasks, key), getattr(b.tasks, key)) for key in ("clients", "end", "outcomes")
    )


def _clients(tasks: EventTasks) -> NDArray[np.intp]:
    """Return the clients by the mean seconds of their tasks, the fastest first; of many an even sample."""
    every, place = np.unique(tasks.clients, return_inverse=True)
    means = np.bincount(place, tasks.seconds) / np.bincount(place)
    return every[np.argsort(means, kind="stable")[plots.thinned(len(every), MAX_CLIENTS)]]


def _windows(tasks: EventTasks, clients: NDArray[np.intp]) -> dict[str, tuple[float, float]]:
    """Return from when to when each part goes; a run with few tasks has only a beginning, which is all."""
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


def _view(run: TimedRun, clients: NDArray[np.intp], window: tuple[float, float]) -> Plot:
    """Return the bars that overlap a window of time."""
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
    runs: Sequence[TimedRun], clients: Sequence[NDArray[np.intp]], views: Sequence[Plot], every: int
) -> list[str]:
    """Say what is shown, and what is not."""
    totals = [len(np.unique(run.tasks.clients)) for run in runs]
    notes = ["Clients are in the order of the mean seconds of their tasks, the fastest on top."]
    if any(total > len(own) for total, own in zip(totals, clients, strict=True)):
        number = " or ".join(sorted({f"{total:,}" for total in totals}))
        notes.append(f"An even sample of {MAX_CLIENTS} of the {number} clients with a task is shown.")
    if len(views) > len(runs):
        number = " or ".join(sorted({f"{len(run.tasks.clients):,}" for run in runs}))
        notes.append(f"Of {number} tasks, each part shows about {MAX_BARS}.")
    if any("shapes" in view["layout"] for view in views):
        notes.append("Vertical lines are the ends of rounds.")
    if every > len(runs):
        notes.append(f"Only the first {count(len(runs), 'run')} of {every} are shown.")
    return notes


def _table(runs: Sequence[TimedRun]) -> Table:
    """Return the first tasks of each run, by the moment at which they ended."""
    rows = []
    for name, tasks, devices in runs:
        for i in range(min(len(tasks.clients), TABLE_ROWS // len(runs))):
            numbers = (
                f"{tasks.begin[i]:.3f}",
                f"{tasks.end[i]:.3f}",
                f"{tasks.given[i]}",
                f"{tasks.ended[i]}",
            )
            lag = f"{tasks.lag[i]:.0f}" if tasks.counted[i] else ""
            shown = Outcome(tasks.outcomes[i]).shown
            client = client_name(int(tasks.clients[i]), devices)
            rows.append([*([name] if len(runs) > 1 else []), client, *numbers, lag, shown])
    names = ("client", "begin, s", "end, s", "task of round", "ended in round", "lag", "outcome")
    return Table([*(["run with"] if len(runs) > 1 else []), *names], rows)
