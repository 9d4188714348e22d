"""The plot of seconds: where the time of the rounds went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flexfl.report.figure import Entry, Figure, Plot, Table, axis, colour, layout, numbers, plain
from flexfl.report.history import History, Numbers

MOST_BINS = 250
MOST_BARS = 40


def phase_figure(groups: Mapping[str, Sequence[History]]) -> Figure | None:
    """Return the plot; None if no seconds were recorded.

    Parameters
    ----------
    groups
        The runs by their labels: of one run the seconds by round are drawn, of several the sums.
    """
    names = list(dict.fromkeys(name for of in groups.values() for history in of for name in history.phases))
    if not names:
        return None
    only = [history for of in groups.values() for history in of]
    one = len(only) == 1
    view, notes = _by_round(only[0], names) if one else _by_label(groups, names)
    rows = [
        [
            label,
            *(f"{_mean_sum(of, name):.3f}" for name in names),
            f"{sum(_mean_sum(of, n) for n in names):.3f}",
        ]
        for label, of in groups.items()
    ]
    return Figure(
        "seconds",
        "Seconds by phase",
        f"Seconds that the phases {', '.join(names)} took, stacked; the table has the sums.",
        {"": view},
        legend=[Entry(name, colour(i), group=name, is_area=True) for i, name in enumerate(names)],
        table=Table(["runs", *(f"{name}, s" for name in names), "sum, s"], rows),
        notes=notes,
        height=340 if one else 110 + 30 * min(len(groups), MOST_BARS),
    )


def _by_round(history: History, names: Sequence[str]) -> tuple[Plot, list[str]]:
    """Return milliseconds by round, stacked."""
    later = history.rounds > 0
    rounds = history.rounds[later] if later.any() else history.rounds
    parts = min(len(rounds), MOST_BINS)
    starts = np.arange(parts) * len(rounds) // parts
    counts = np.diff([*starts, len(rounds)])
    x = np.add.reduceat(rounds, starts) / counts
    data, total = [], np.zeros(parts)
    for i, name in enumerate(names):
        values = history.phases[name][later] if later.any() else history.phases[name]
        mean: Numbers = 1000 * np.add.reduceat(values, starts) / counts
        total += mean
        hover = f"round %{{x:.0f}}<br>{plain(name)}: %{{y:.3~g}} ms<extra></extra>"
        stack = {"stackgroup": "all", "line": {"width": 0.5, "color": colour(i)}, "fillcolor": colour(i)}
        points = {"x": numbers(x), "y": numbers(mean, 4), "mode": "lines", "hovertemplate": hover}
        data.append({**points, **stack, "legendgroup": name})
    notes = [f"A point is the mean of up to {counts.max()} rounds."] if counts.max() > 1 else []
    vertical = axis("milliseconds a round", rangemode="tozero")
    usual = np.sort(total)[: max(1, math.floor(0.98 * parts))].max()
    if (top := float(total.max())) > 3 * usual > 0:  # such as a first round, which starts the workers
        vertical["range"] = [0, 1.15 * float(usual)]
        where = f"up to {top:,.0f} ms in round {x[total.argmax()]:.0f}"
        notes.append(f"Points beyond the axis: {int((total > 1.15 * usual).sum())}, {where}.")
    return {"data": data, "layout": layout(xaxis=axis("round"), yaxis=vertical)}, notes


def _by_label(groups: Mapping[str, Sequence[History]], names: Sequence[str]) -> tuple[Plot, list[str]]:
    """Return the seconds of whole runs, stacked: a bar for each label."""
    labels = [*groups][:MOST_BARS]
    data = []
    for i, name in enumerate(names):
        seconds = [_mean_sum(groups[label], name) for label in labels]
        hover = f"%{{y}}<br>{plain(name)}: %{{x:.3~g}} s<extra></extra>"
        bars = {
            "type": "bar",
            "orientation": "h",
            "x": numbers(seconds),
            "y": [plain(label) for label in labels],
        }
        data.append({**bars, "marker": {"color": colour(i)}, "hovertemplate": hover, "legendgroup": name})
    vertical = axis(autorange="reversed", type="category", automargin=True)
    notes = ["Sums over the rounds of a run, means over seeds."]
    if len(labels) < len(groups):
        notes.append(f"The first {len(labels)} of {len(groups)} are drawn.")
    made = layout(xaxis=axis("seconds"), yaxis=vertical, barmode="stack", bargap=0.3)
    return {"data": data, "layout": made}, notes


def _mean_sum(of: Sequence[History], name: str) -> float:
    return float(np.mean([history.phases[name].sum() if name in history.phases else 0.0 for history in of]))
