"""Arrivals, departures, decisions and failures along the rounds or the clock."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedtide.ground.wording import client_name, count
from fedtide.report import plots
from fedtide.report.figure import Figure, Plot, Table, Toggle
from fedtide.report.history import Event, History

MAX_RUNS = 12
MAX_BINS = 200
MAX_REASONS = 8
TABLE_ROWS = 500


class Line(NamedTuple):
    """A line of dots: by round, texts for the events of a kind, or numbers of clients for a failure."""

    kind: str
    events: Mapping[int, Sequence[str]]
    failures: Mapping[int, int]


def event_figure(runs: Sequence[tuple[str, History]], notes: Sequence[str] = ()) -> Figure | None:
    """Return the figure of the runs, by name, that have any events or failures; None if there are none."""
    eventful = plots.merged(
        ((name, history) for name, history in runs if history.events or history.failures),
        lambda a, b: (a.events, a.failures) == (b.events, b.failures),
    )
    shown = eventful[:MAX_RUNS]
    if not shown:
        return None
    clock, several = all(history.has_clock for _, history in shown), len(eventful) > 1
    views: dict[str, Plot] = {}
    notes = [*notes, "Failed and rejected replies are grouped by reason; larger dots stand for more replies."]
    lines = [_lines(history) for _, history in shown]
    for number, (name, history) in enumerate(shown):
        for x in ("rounds", "time") if clock else ("rounds",):
            key = "|".join([*([str(number)] if several else []), *([x] if clock else [])])
            views[key] = _view(history, lines[number], x == "time")
        if history.num_events > len(history.events):
            notes.append(f"{name}: only the first {len(history.events):,} of {history.num_events:,} events.")
    if len(eventful) > len(shown):
        notes.append(f"Only the first {len(shown)} of {len(eventful)} runs are shown.")
    toggles = [Toggle("Run with", {str(i): name for i, (name, _) in enumerate(shown)})] if several else []
    toggles += [Toggle("Against", {"rounds": "Rounds", "time": "Virtual time"})] if clock else []
    return Figure(
        "events",
        "Events and failures",
        "Dots along the rounds for arrivals, departures, decisions and failed replies, as in the table.",
        views,
        toggles,
        table=_table(shown, several),
        notes=notes,
        height=110 + 44 * max(map(len, lines)),
    )


def _lines(history: History) -> list[Line]:
    """Return the kinds of events, then the reasons of failures, the rarest of many together."""
    kinds: dict[str, dict[int, list[str]]] = {}
    for event in history.events:
        text = _text(event, history.client_names)
        kinds.setdefault(event.kind, {}).setdefault(event.round, []).append(text)
    reasons = [*history.failures.items()]
    own = reasons if len(reasons) <= MAX_REASONS + 1 else reasons[:MAX_REASONS]
    others: Counter[int] = Counter()
    for _, by_round in reasons[len(own) :]:
        others.update(by_round)
    rare = [("other reasons", others)] if others else []
    failures = [Line(reason, {}, by_round) for reason, by_round in [*own, *rare]]
    return [*(Line(kind, by_round, {}) for kind, by_round in kinds.items()), *failures]


def _text(event: Event, names: Sequence[str]) -> str:
    client = "" if event.client is None else f"client {client_name(event.client, names)}"
    return ", ".join(filter(None, (client, event.details)))


def _view(history: History, lines: Sequence[Line], in_time: bool) -> Plot:
    """Return a line of dots for each kind, the first on top."""
    last = int(history.rounds[-1])
    hours = dict(zip(history.rounds.tolist(), (history.virtual_seconds / 3600).tolist(), strict=True))
    data = [_dots(line, i, last, hours if in_time else None) for i, line in enumerate(lines)]
    names = [_in_html("\n".join(textwrap.wrap(line.kind, 22)[:3])) for line in lines]
    end = hours.get(last, math.nan) if in_time else last
    title = "virtual time, hours" if in_time else "round"
    horizontal = plots.axis(title, range=[-0.02 * end, 1.02 * end])
    vertical = plots.axis(automargin=True, range=[len(lines) - 0.4, -0.6])
    vertical |= {"tickvals": [*range(len(lines))], "ticktext": names}
    return {"data": data, "layout": plots.layout(xaxis=horizontal, yaxis=vertical)}


def _dots(line: Line, i: int, last: int, hours: Mapping[int, float] | None) -> Plot:
    """Return the dots of a line: one for a round, or for some neighbouring rounds."""
    width = -(-last // MAX_BINS)
    x, sizes, hover = [], [], []
    for b in sorted({(t - 1) // width for t in (*line.events, *line.failures)}):
        first, end = b * width + 1, min((b + 1) * width, last)
        texts = [text for t in range(first, end + 1) for text in line.events.get(t, ())]
        failed = sum(line.failures.get(t, 0) for t in range(first, end + 1))
        middle = min(b * width + (width + 1) // 2, last)
        x.append(middle if hours is None else hours.get(middle, math.nan))
        sizes.append(min(26.0, round(9 + 2.5 * math.sqrt(len(texts) + failed - 1), 1)))
        where = f"round {middle}" if width == 1 else f"rounds {first} to {end}"
        hover.append(_in_html(f"{where}: {_listed(texts) if texts else count(failed, 'client')}"))
    template = f"{plots.plain(line.kind)}<br>%{{text}}"
    marker = {"size": sizes, "color": plots.colour(i), "opacity": 0.75}
    return plots.trace(x, [i] * len(x), template, mode="markers", marker=marker, text=hover)


def _listed(texts: Sequence[str]) -> str:
    """Return the first texts, in lines that fit on the page."""
    return plots.listed(["\n".join(textwrap.wrap(text, 60)) for text in texts], 3, "; ")


def _in_html(text: str) -> str:
    return plots.plain(text).replace("\n", "<br>")


def _table(runs: Sequence[tuple[str, History]], several: bool) -> Table:
    """Return the failures by reason, and the events."""
    rows: list[list[str]] = []
    for name, history in runs:
        head = [name] if several else []
        for reason, by_round in history.failures.items():
            first, *rest = by_round
            where = f"{first} to {rest[-1]}" if rest else str(first)
            number = f"{sum(by_round.values())} failed in {count(len(by_round), 'round')}"
            rows.append([*head, where, "", reason, "", number])
        for event in history.events:
            hours = "" if event.seconds is None else f"{event.seconds / 3600:.2f}"
            client = "" if event.client is None else client_name(event.client, history.client_names)
            rows.append([*head, str(event.round), hours, event.kind, client, event.details])
    names = ("round", "hours", "event", "client", "details")
    return Table([*(["runs"] if several else []), *names], rows[:TABLE_ROWS])
