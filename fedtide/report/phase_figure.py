"""Seconds by phase: where the time of the rounds went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedtide.report import plots
from fedtide.report.figure import Entry, Figure, Plot, Table
from fedtide.report.history import History
from fedtide.report.plots import Numbers

COLOURS = (*plots.SERIES, "#F0E442")  # one more phase than lines have colours
MAX_POINTS = 250
MAX_BARS = 40


def phase_figure(groups: Mapping[str, Sequence[History]]) -> Figure | None:
    """Return the figure of runs by their labels: of one run the seconds by round, of several the sums.

    None if no seconds were recorded.
    """
    histories = [history for group in groups.values() for history in group]
    names = [*dict.fromkeys(name for history in histories for name in history.phases)]
    if not names:
        return None
    sums = {label: [_mean_sum(group, name) for name in names] for label, group in groups.items()}
    one = len(histories) == 1
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
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
    """Return milliseconds by round, stacked."""
    later = history.rounds > 0 if (history.rounds > 0).any() else history.rounds >= 0
    rounds = history.rounds[later]
    starts, counts = plots.bins(len(rounds), MAX_POINTS)
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


def _mean_sum(group: Sequence[History], name: str) -> float:
    return float(np.mean([history.phases.get(name, np.zeros(1)).sum() for history in group]))
