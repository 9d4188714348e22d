"""The plot of what happened: arrivals, departures, decisions, failures, along the rounds or the clock."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from flexfl.ground.wording import count
from flexfl.report.figure import Figure, Plot, Table, Toggle, axis, colour, layout, merged, plain
from flexfl.report.history import Event, History

MOST_RUNS = 12
MOST_BINS = 200
MOST_REASONS = 8
TABLE_ROWS = 500


def event_figure(runs: Sequence[tuple[str, History]]) -> Figure | None:
    """Return the plot of the runs in which something happened; None if there are none.

    Parameters
    ----------
    runs
        Names and histories.
    """
    eventful = merged(
        ((name, history) for name, history in runs if history.events or history.failures),
        lambda a, b: (a.events, a.failures) == (b.events, b.failures),
    )
    shown = eventful[:MOST_RUNS]
    if not shown:
        return None
    clock = all(history.has_clock for _, history in shown)
    several = len(eventful) > 1
    views: dict[str, Plot] = {}
    notes = [
        "Failed and rejected replies are counted by reason, without the numbers in it; larger dots are more."
    ]
    for number, (name, history) in enumerate(shown):
        lines = _lines(history)
        for in_time in (False, True) if clock else (False,):
            keys = [
                *([str(number)] if several else []),
                *(["time" if in_time else "rounds"] if clock else []),
            ]
            views["|".join(keys)] = _view(history, lines, in_time)
        if history.num_events > len(history.events):
            notes.append(
                f"{name}: the first {len(history.events):,} of {history.num_events:,} events are shown."
            )
    if len(eventful) > len(shown):
        notes.append(f"The first {len(shown)} of {len(eventful)} are shown.")
    toggles = [Toggle("Run with", {str(i): name for i, (name, _) in enumerate(shown)})] if several else []
    toggles += [Toggle("Against", {"rounds": "Rounds", "time": "Virtual time"})] if clock else []
    most = max(len(_lines(history)) for _, history in shown)
    return Figure(
        "events",
        "Events and failures",
        "Dots along the rounds for arrivals, departures, decisions and failed replies, as in the table.",
        views,
        toggles,
        table=_table(shown, several),
        notes=notes,
        height=110 + 44 * most,
    )


def _lines(history: History) -> dict[str, dict[int, list[str]]]:
    """Return what happened by kind and round: a text for each time."""
    lines: dict[str, dict[int, list[str]]] = {}
    for event in history.events:
        lines.setdefault(event.kind, {}).setdefault(event.round, []).append(_told(event))
    reasons = [*history.failures]
    for i, reason in enumerate(reasons):
        kind = reason if i < MOST_REASONS or len(reasons) == MOST_REASONS + 1 else "other reasons"
        for t, times in history.failures[reason].items():
            lines.setdefault(kind, {}).setdefault(t, []).extend(["failed"] * times)
    return lines


def _told(event: Event) -> str:
    who = "" if event.client is None else f"client {event.client}"
    return ", ".join(filter(None, (who, event.details)))


def _view(history: History, lines: Mapping[str, Mapping[int, Sequence[str]]], in_time: bool) -> Plot:
    """Return a line of dots for each kind, the first on top."""
    clock = dict(zip(history.rounds.tolist(), (history.virtual_seconds / 3600).tolist(), strict=True))
    last = int(history.rounds[-1])
    width = -(-last // MOST_BINS)
    data = []
    for i, (kind, by_round) in enumerate(lines.items()):
        bins: dict[int, list[str]] = {}
        for t, texts in by_round.items():
            bins.setdefault((t - 1) // width, []).extend(texts)
        x, sizes, hover = [], [], []
        for b, texts in sorted(bins.items()):
            t = min(b * width + (width + 1) // 2, last)
            x.append(clock.get(t, math.nan) if in_time else t)
            sizes.append(round(9 + 2.5 * math.sqrt(len(texts) - 1), 1))
            where = f"round {t}" if width == 1 else f"rounds {b * width + 1} to {min((b + 1) * width, last)}"
            hover.append(f"{where}: {_listed(texts)}")
        marker = {"size": [min(size, 26) for size in sizes], "color": colour(i), "opacity": 0.75}
        data.append(
            {
                "x": [round(value, 4) if math.isfinite(value) else None for value in x],
                "y": [i] * len(x),
                "mode": "markers",
                "marker": marker,
                "text": [plain(text) for text in hover],
                "hovertemplate": f"{plain(kind)}<br>%{{text}}<extra></extra>",
            }
        )
    names = [plain("\n".join(textwrap.wrap(kind, 22)[:3])).replace("\n", "<br>") for kind in lines]
    hours = clock.get(last, math.nan)
    vertical = axis(
        automargin=True, tickvals=[*range(len(lines))], ticktext=names, range=[len(lines) - 0.4, -0.6]
    )
    ends = [-0.02 * (hours if in_time else last), 1.02 * (hours if in_time else last)]
    made = layout(xaxis=axis("virtual time, hours" if in_time else "round", range=ends), yaxis=vertical)
    return {"data": data, "layout": made}


def _listed(texts: Sequence[str]) -> str:
    """Return a text for the dot: what happened if it was one thing, else how often."""
    told = [text for text in texts if text != "failed"]
    if not told:
        return count(len(texts), "client")
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return "; ".join("<br>".join(textwrap.wrap(text, 60)) for text in told[:3]) + more


def _table(runs: Sequence[tuple[str, History]], several: bool) -> Table:
    """Return the events, and the failures by reason."""
    rows: list[list[str]] = []
    for name, history in runs:
        head = [name] if several else []
        for reason, by_round in history.failures.items():
            rounds = [*by_round]
            where = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0])
            rows.append(
                [*head, where, "", reason, "", f"{sum(by_round.values())} clients in {len(rounds)} rounds"]
            )
        for event in history.events:
            hours = "" if event.seconds is None else f"{event.seconds / 3600:.2f}"
            client = "" if event.client is None else str(event.client)
            rows.append([*head, str(event.round), hours, event.kind, client, event.details])
    head = ["runs"] if several else []
    return Table([*head, "round", "hours", "what", "client", "numbers"], rows[:TABLE_ROWS])
