"""Seconds by phase: where the time of the rounds went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flexfl.report.figure import (
    SERIES,
    Entry,
    Figure,
    Numbers,
    Plot,
    Table,
    axis,
    bins,
    layout,
    numbers,
    plain,
)
from flexfl.report.history import History

COLOURS = (*SERIES, "#F0E442")  # one more phase than lines have colours
MAX_POINTS = 250
MAX_BARS = 40


def phase_figure(groups: Mapping[str, Sequence[History]]) -> Figure | None:
    """Return the figure; None if no seconds were recorded.

    Parameters
    ----------
    groups
        The runs by their labels: of one run, the seconds by round are drawn, of several the sums.
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
    starts, counts = bins(len(rounds), MAX_POINTS)
    x = np.add.reduceat(rounds, starts) / counts
    means = {
        name: 1000 * np.add.reduceat(seconds[later], starts) / counts
        for name, seconds in history.phases.items()
    }
    data = [
        {
            "x": numbers(x),
            "y": numbers(mean, 4),
            "mode": "lines",
            "hovertemplate": f"round %{{x:.0f}}<br>{plain(name)}: %{{y:.3~g}} ms<extra></extra>",
            "stackgroup": "all",
            "line": {"width": 0.5, "color": colours[name]},
            "fillcolor": colours[name],
            "legendgroup": name,
        }
        for name, mean in means.items()
    ]
    notes = [f"Each point is the mean of up to {counts.max()} rounds."] if counts.max() > 1 else []
    vertical = axis("milliseconds per round", rangemode="tozero")
    notes += _without_peaks(vertical, x, np.sum([*means.values()], axis=0))
    return {"data": data, "layout": layout(xaxis=axis("round"), yaxis=vertical)}, notes


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
            "x": numbers(sums[label][i] for label in labels),
            "y": [plain(label) for label in labels],
            "marker": {"color": own},
            "hovertemplate": f"%{{y}}<br>{plain(name)}: %{{x:.3~g}} s<extra></extra>",
            "legendgroup": name,
        }
        for i, (name, own) in enumerate(colours.items())
    ]
    notes = ["Sums over the rounds of a run, averaged over seeds."]
    if len(labels) < len(sums):
        notes.append(f"Only the first {len(labels)} of {len(sums)} are drawn.")
    vertical = axis(autorange="reversed", type="category", automargin=True)
    made = layout(xaxis=axis("seconds"), yaxis=vertical, barmode="stack", bargap=0.3)
    return {"data": data, "layout": made}, notes


def _mean_sum(group: Sequence[History], name: str) -> float:
    return float(
        np.mean([history.phases[name].sum() if name in history.phases else 0.0 for history in group])
    )
