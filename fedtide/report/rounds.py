"""What happened in the rounds: arrivals, departures, decisions and failures; seconds by phase."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtide.base.wording import client_name, count
from fedtide.engine.history import MAX_EVENTS, History, Numbers, bins
from fedtide.engine.observers import Record
from fedtide.engine.read_run import Run
from fedtide.report import plots
from fedtide.report.plots import Entry, Figure, Plot, Table, Toggle

MAX_BINS = 200
MAX_REASONS = 8
MAX_POINTS = 250  # of the seconds of a run
MAX_BARS = 40
PHASE_COLOURS = (*plots.SERIES, "#F0E442")  # one more phase than lines have colours


class Event(NamedTuple):
    """An arrival, departure or decision in a round, with the numbers behind it."""

    round: int
    seconds: float | None
    kind: str
    client: str  # with its name; empty: it is about none
    details: str


class Eventful(NamedTuple):
    """A run with events or failures."""

    history: History
    events: Sequence[Event]  # the first of num_events
    num_events: int

    @property
    def lines(self) -> list[tuple[str, Dots]]:
        """The kinds of events, then the reasons of failures, the rarest of many together."""
        kinds: dict[str, dict[int, list[str]]] = {}
        for event in self.events:
            named = event.client and f"client {event.client}"
            text = ", ".join(filter(None, (named, event.details)))
            kinds.setdefault(event.kind, {}).setdefault(event.round, []).append(text)
        reasons = [*self.history.failures.items()]
        shown = len(reasons) if len(reasons) <= MAX_REASONS + 1 else MAX_REASONS
        others: Counter[int] = Counter()
        for _, by_round in reasons[shown:]:
            others.update(by_round)
        return [*kinds.items(), *reasons[:shown], *([("other reasons", others)] if others else [])]


Dots = Mapping[int, Sequence[str]] | Mapping[int, int]
"""What happened by round: texts of events, or how many clients failed."""


def event_figure(runs: Mapping[str, Run], notes: Sequence[str] = ()) -> Figure | None:
    """Return the figure of those runs that have events or failures; None if none has."""
    found = ((name, _eventful(run)) for name, run in runs.items())
    shown, left_out = plots.merged(
        ((name, own) for name, own in found if own.num_events or own.history.failures),
        lambda a, b: (a.events, a.history.failures) == (b.events, b.history.failures),
    )
    if not shown:
        return None
    histories = [own.history for own in shown.values()]
    lines = [own.lines for own in shown.values()]
    clock = all(history.has_clock for history in histories)
    toggles = [
        Toggle("Run with", {str(i): name for i, name in enumerate(shown)}),
        Toggle("Against", {"rounds": "Rounds"} | ({"time": "Virtual time"} if clock else {})),
    ]
    notes = [*notes, "Failed and rejected replies are grouped by reason; larger dots stand for more replies."]
    notes += [
        f"{name}: only the first {MAX_EVENTS:,} of {own.num_events:,} events."
        for name, own in shown.items()
        if own.num_events > MAX_EVENTS
    ]
    return Figure(
        "events",
        "Events and failures",
        "Dots along the rounds for arrivals, departures, decisions and failed replies, as in the table.",
        plots.views(toggles, lambda i, x: _event_view(histories[int(i)], lines[int(i)], x == "time")),
        toggles,
        table=plots.table_of(
            ["round", "hours", "event", "client", "details"],
            {name: _rows(own) for name, own in shown.items()},
        ),
        notes=[*notes, *left_out],
        height=110 + 44 * max(map(len, lines)),
    )


def _eventful(run: Run) -> Eventful:
    history = run.history
    rounds = history.rounds.tolist()
    clock = [None if math.isnan(s) else s for s in history.column("virtual_seconds").tolist()]
    events = []
    for row, event in history.events:
        client = "" if event.get("client") is None else client_name(event["client"], run.client_names)
        events.append(Event(rounds[row], clock[row], _kind(event), client, _details(event)))
    rate = history.column("learning_rate")
    restarts = np.flatnonzero(rate[1:] > rate[:-1] * (1 + 1e-9)) + 1
    for row in restarts.tolist():
        details = f"from {rate[row - 1]:.4g} to {rate[row]:.4g}"
        events.append(Event(rounds[row], clock[row], "learning rate restarts", "", details))
    events.sort(key=lambda event: event.round)
    return Eventful(history, events[:MAX_EVENTS], history.num_events + len(restarts))


def _kind(event: Record) -> str:
    """Name an event by the decision."""
    kind = str(event.get("event", "event")).replace("-", " ")
    if kind == "departure" and "objective" in event:
        kind = f"departure, objective {'kept' if event['objective'] == 'include' else 'dropped'}"
    if "boosted" in event:
        kind += ", boosted" if event["boosted"] else ", not boosted"
    return f"{kind} without a reply" if event.get("received", True) is False else kind


def _details(event: Record) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in event.items()
        if key not in ("event", "client", "boosted", "received")
    )


def _event_view(history: History, lines: Sequence[tuple[str, Dots]], in_time: bool) -> Plot:
    """Return a line of dots for each kind, the first on top."""
    last = int(history.rounds[-1])
    hours = dict(zip(history.rounds.tolist(), (history.clock / 3600).tolist(), strict=True))
    data = [_dots(*line, i, last, hours if in_time else None) for i, line in enumerate(lines)]
    names = [_in_html("\n".join(textwrap.wrap(kind, 22)[:3])) for kind, _ in lines]
    end = hours.get(last, math.nan) if in_time else last
    title = "virtual time, hours" if in_time else "round"
    horizontal = plots.axis(title, range=[-0.02 * end, 1.02 * end])
    vertical = plots.axis(automargin=True, range=[len(lines) - 0.4, -0.6])
    vertical |= {"tickvals": [*range(len(lines))], "ticktext": names}
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _dots(kind: str, dots: Dots, i: int, last: int, hours: Mapping[int, float] | None) -> Plot:
    width = -(-last // MAX_BINS)
    x, sizes, hover = [], [], []
    for b in sorted({(t - 1) // width for t in dots}):
        first, end = b * width + 1, min((b + 1) * width, last)
        found = [dots[t] for t in range(first, end + 1) if t in dots]
        texts = [text for of in found if not isinstance(of, int) for text in of]
        failed = sum(of for of in found if isinstance(of, int))
        middle = min(b * width + (width + 1) // 2, last)
        x.append(middle if hours is None else hours.get(middle, math.nan))
        sizes.append(min(26.0, round(9 + 2.5 * math.sqrt(len(texts) + failed - 1), 1)))
        where = f"round {middle}" if width == 1 else f"rounds {first} to {end}"
        hover.append(_in_html(f"{where}: {_listed(texts) if texts else count(failed, 'client')}"))
    template = f"{plots.plain(kind)}<br>%{{text}}"
    marker = {"size": sizes, "color": plots.colour(i), "opacity": 0.75}
    return plots.trace(x, [i] * len(x), template, mode="markers", marker=marker, text=hover)


def _listed(texts: Sequence[str]) -> str:
    """Return the first texts, in lines that fit on the page."""
    return plots.listed(["\n".join(textwrap.wrap(text, 60)) for text in texts], 3, "; ")


def _in_html(text: str) -> str:
    return plots.plain(text).replace("\n", "<br>")


def _rows(own: Eventful) -> Iterator[list[str]]:
    for reason, by_round in own.history.failures.items():
        first, *rest = by_round
        where = f"{first} to {rest[-1]}" if rest else str(first)
        number = f"{sum(by_round.values())} failed in {count(len(by_round), 'round')}"
        yield [where, "", reason, "", number]
    for event in own.events:
        hours = "" if event.seconds is None else f"{event.seconds / 3600:.2f}"
        yield [str(event.round), hours, event.kind, event.client, event.details]


def phase_figure(groups: Mapping[str, Sequence[History]]) -> Figure | None:
    """Return the figure of runs by their labels: of one run the seconds by round, of several the sums.

    None if no seconds were recorded.
    """
    histories = [history for group in groups.values() for history in group]
    names = [*dict.fromkeys(name for history in histories for name in history.phases)]
    if not names:
        return None
    none = np.zeros(1)
    sums = {
        label: [float(np.mean([history.phases.get(name, none).sum() for history in group])) for name in names]
        for label, group in groups.items()
    }
    one = len(histories) == 1
    colours = {name: PHASE_COLOURS[i % len(PHASE_COLOURS)] for i, name in enumerate(names)}
    view, notes = _by_round(histories[0], colours) if one else _by_label(sums, colours)
    rows = [[label, *(f"{value:.3f}" for value in (*of, sum(of)))] for label, of in sums.items()]
    return Figure(
        "seconds",
        "Seconds by phase",
        f"Seconds of the phases {', '.join(names)}, stacked; the table has the sums.",
        {"": view},
        legend=[Entry(name, own, group=name, is_area=True) for name, own in colours.items()],
        table=Table(["runs", *(f"{name}, s" for name in names), "sum, s"], rows),
        notes=notes,
        height=340 if one else 110 + 30 * min(len(groups), MAX_BARS),
    )


def _by_round(history: History, colours: Mapping[str, str]) -> tuple[Plot, list[str]]:
    later = history.rounds > 0 if (history.rounds > 0).any() else history.rounds >= 0
    rounds = history.rounds[later]
    starts, counts = bins(len(rounds), MAX_POINTS)
    x = np.add.reduceat(rounds, starts) / counts
    data, total = [], np.zeros(len(x))
    for name, seconds in history.phases.items():
        mean = 1000 * np.add.reduceat(seconds[later], starts) / counts
        total += mean
        hover = f"round %{{x:.0f}}<br>{plots.plain(name)}: %{{y:.3~g}} ms"
        line = {"width": 0.5, "color": colours[name]}
        area = {"stackgroup": "all", "fillcolor": colours[name], "legendgroup": name}
        data.append(plots.trace(x, mean, hover, mode="lines", line=line, **area))
    notes = [f"Each point is the mean of up to {counts.max()} rounds."] if counts.max() > 1 else []
    vertical = plots.axis("milliseconds per round", rangemode="tozero")
    notes += _without_peaks(vertical, x, total)
    return {"data": data, "layout": plots.layout(xaxis=plots.axis("round"), yaxis=vertical)}, notes


def _without_peaks(vertical: Plot, x: Numbers, total: Numbers) -> list[str]:
    """Limit an axis that a few rounds would stretch, such as the first, which starts the workers."""
    usual = float(np.sort(total)[: max(1, math.floor(0.98 * len(total)))].max())
    top = float(total.max())
    if not top > 3 * usual > 0:
        return []
    vertical["range"] = [0, 1.15 * usual]
    beyond = int((total > 1.15 * usual).sum())
    return [f"Points beyond the axis: {beyond}, up to {top:,.0f} ms in round {x[total.argmax()]:.0f}."]


def _by_label(sums: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> tuple[Plot, list[str]]:
    """Return the seconds of whole runs, stacked: a bar for each label."""
    labels = [*sums][:MAX_BARS]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "x": plots.numbers(sums[label][i] for label in labels),
            "y": [plots.plain(label) for label in labels],
            "marker": {"color": own},
            "hovertemplate": f"%{{y}}<br>{plots.plain(name)}: %{{x:.3~g}} s<extra></extra>",
            "legendgroup": name,
        }
        for i, (name, own) in enumerate(colours.items())
    ]
    notes = ["Sums over the rounds of a run, averaged over seeds."]
    if len(labels) < len(sums):
        notes.append(f"Only the first {len(labels)} of {len(sums)} are drawn.")
    vertical = plots.axis(autorange="reversed", type="category", automargin=True)
    made = plots.layout(xaxis=plots.axis("seconds"), yaxis=vertical, barmode="stack", bargap=0.3)
    return {"data": data, "layout": made}, notes
