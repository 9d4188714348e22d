"""Metric and loss against rounds, uploads, data and time: a line for each label, with a band over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flexfl.report.figure import (
    MAX_LINES,
    Figure,
    Numbers,
    Plot,
    Table,
    Toggle,
    area_between,
    axis,
    bins,
    colour,
    layout,
    legend_of,
    line_of,
    listed,
    numbers,
    panel,
    percent,
    plain,
    thinned,
)
from flexfl.report.history import History
from flexfl.tasks import ACCURACY, Metric

MAX_POINTS = 4000  # of all lines together, but at least MIN_POINTS and at most 400 of each
MIN_POINTS = 60
FEW_LINES = 6  # of more, the bands are fainter
TABLE_ROWS = 40

Bands = Mapping[str, Mapping[str, "Band"]]
"""By curve, `score` or `loss`, and label."""


@dataclass(frozen=True)
class Band:
    """A curve of runs that differ only in the seed.

    Attributes
    ----------
    x
        `rounds`, `uploads`, `megabytes` and `seconds` up to each point, means over seeds, shape (P,) each.
    mean, low, high
        Mean over seeds, lowest and highest; of several evaluations where they share a point.
    """

    x: Mapping[str, Numbers]
    mean: Numbers
    low: Numbers
    high: Numbers


class Against(NamedTuple):
    """A horizontal axis: its key in `Band.x`, name, unit (may be empty), and the unit's size."""

    key: str
    name: str
    unit: str = ""
    size: float = 1.0

    @property
    def title(self) -> str:
        """Its name with the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


UNITS = (
    Against("megabytes", "data sent both ways", "GB", 1e3),
    Against("megabytes", "data sent both ways", "MB"),
    Against("megabytes", "data sent both ways", "kB", 1e-3),
    Against("seconds", "virtual time", "days", 86400),
    Against("seconds", "virtual time", "hours", 3600),
    Against("seconds", "virtual time", "seconds"),
)


def _axes(ends: Mapping[str, float]) -> list[Against]:
    """Return the axes that have something to show, in the largest unit that fits."""
    fitting: dict[str, Against] = {}
    for own in UNITS:
        if ends[own.key] >= 2 * own.size:
            fitting.setdefault(own.key, own)
    return [Against("rounds", "rounds"), Against("uploads", "uploads"), *fitting.values()]


def band_of(histories: Sequence[History], curve: str, points: int) -> Band | None:
    """Return the curve of `score` or `loss`; None if it was never evaluated."""
    columns = []
    for history in histories:
        values = getattr(history, curve)
        own = (values, history.rounds, history.uploads, history.megabytes, history.virtual_seconds)
        at = np.flatnonzero(np.isfinite(values))
        columns.append({int(history.rounds[i]): [column[i] for column in own] for i in at})
    rounds = sorted({t for column in columns for t in column})
    if not rounds:
        return None
    missing = [np.nan] * 5
    every = np.array([[column.get(t, missing) for t in rounds] for column in columns])  # seeds, rounds, 5
    starts, counts = bins(len(rounds), points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # without a clock, all seconds are NaN
        means = np.nanmean(every, axis=0)
        low, high = np.nanmin(every[..., 0], axis=0), np.nanmax(every[..., 0], axis=0)
    mean, *x = (np.add.reduceat(means, starts) / counts[:, None]).T
    return Band(
        dict(zip(("rounds", "uploads", "megabytes", "seconds"), x, strict=True)),
        mean,
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
    )


def curves_figure(
    groups: Mapping[str, Sequence[History]], papers: Mapping[str, float | None], metric: Metric = ACCURACY
) -> Figure | None:
    """Return the figure of metric and loss; None if nothing was evaluated.

    Parameters
    ----------
    groups
        The runs by their labels.
    papers
        The results that papers report, in percent, by label.
    metric
        Of the task.
    """
    labels = [*groups][:MAX_LINES]
    points = int(np.clip(MAX_POINTS / max(1, len(labels)), MIN_POINTS, 400))
    bands = {
        curve: {label: band for label in labels if (band := band_of(groups[label], curve, points))}
        for curve in ("score", "loss")
    }
    bands = {curve: group for curve, group in bands.items() if group}
    if not bands:
        return None
    every = [band for group in bands.values() for band in group.values()]
    ends = {key: max(float(np.nanmax(np.append(band.x[key], 0))) for band in every) for key in every[0].x}
    axes = _axes(ends)
    return Figure(
        "curves",
        f"{metric.title.capitalize()} and loss",
        f"Lines of {metric.title} and loss for {listed(labels, 8)}; the table below has the numbers.",
        {own.key: _view(bands, metric, own, 1.02 * ends[own.key] / own.size, labels, papers) for own in axes},
        [Toggle("Against", {own.key: own.name.capitalize() for own in axes})],
        legend_of(labels, labels),
        table=_table(bands, metric),
        notes=_notes(groups, labels, papers, points),
        height=250 * len(bands) + 60,
    )


def _notes(
    groups: Mapping[str, Sequence[History]],
    labels: Sequence[str],
    papers: Mapping[str, float | None],
    points: int,
) -> list[str]:
    notes = []
    if (seeds := max(len(groups[label]) for label in labels)) > 1:
        notes.append(f"Lines are means over up to {seeds} seeds; bands span the lowest to the highest seed.")
        notes.append("Uploads, data and time are means over the seeds, too.")
    evaluations = max(
        len({t for h in groups[label] for t in h.rounds[np.isfinite(h.loss) | np.isfinite(h.score)].tolist()})
        for label in labels
    )
    if (most := -(-evaluations // points)) > 1:
        notes.append(f"Each point is the mean of up to {most} evaluations; the band spans all of them.")
    if len(labels) < len(groups):
        notes.append(f"Only the first {len(labels)} of {len(groups)} are drawn; the results table has all.")
    if any(papers.get(label) is not None for label in labels):
        notes.append("Diamonds are the results that the paper reports, in percent.")
    return notes


def _view(
    bands: Bands,
    metric: Metric,
    against: Against,
    end: float,
    labels: Sequence[str],
    papers: Mapping[str, float | None],
) -> Plot:
    """Return the traces over one horizontal axis, the metric above the loss; diamonds stand at `end`."""
    areas: list[Plot] = []
    lines: list[Plot] = []  # on top of all areas
    opacity = 0.2 if len(labels) <= FEW_LINES else 0.06
    made = layout(xaxis=axis(against.title, anchor="y" if len(bands) == 1 else "y2", rangemode="tozero"))
    for row, (curve, group) in enumerate(bands.items()):
        place, key, domain = panel(row, len(bands))
        title = _titles(metric)[curve]
        made[key] = axis(title, domain=domain)
        factor = 100 if curve == "score" and metric.is_share else 1
        for label, band in group.items():
            i, x = labels.index(label), band.x[against.key] / against.size
            if not np.isfinite(x).any():
                continue  # it has no clock
            common = {"yaxis": place, "legendgroup": label, "name": plain(label)}
            if (band.high > band.low).any():
                area = area_between(x, factor * band.low, factor * band.high, colour(i), opacity)
                areas.append({**common, **area})
            hover = f"%{{x:.4~g}} {plain(against.title)}<br>%{{y:.4~g}} {title}"
            line = {
                "x": numbers(x),
                "y": numbers(factor * band.mean),
                "mode": "lines" if len(x) > 1 else "markers",
                "line": line_of(i),
                "hovertemplate": f"{plain(label)}<br>{hover}<extra></extra>",
            }
            lines.append({**common, **line})
            if curve == "score" and (paper := papers.get(label)) is not None:
                lines.append({**common, **_diamond(end, paper, colour(i), label)})
    return {"data": areas + lines, "layout": made}


def _diamond(x: float, paper: float, own: str, label: str) -> Plot:
    marker = {"symbol": "diamond-open", "size": 11, "color": own, "line": {"width": 2}}
    hover = f"{plain(label)}: the paper reports {paper:g} %<extra></extra>"
    return {"x": [x], "y": [paper], "mode": "markers", "marker": marker, "hovertemplate": hover}


def _titles(metric: Metric) -> dict[str, str]:
    """Return the names of the curves."""
    return {"score": f"{metric.title}, %" if metric.is_share else metric.title, "loss": "loss"}


def _table(bands: Bands, metric: Metric) -> Table:
    """Return the means at some of the rounds."""
    columns = [(curve, label, band) for curve, group in bands.items() for label, band in group.items()]
    longest = max((band for _, _, band in columns), key=lambda band: len(band.mean)).x["rounds"]
    rows = []
    for t in longest[thinned(len(longest), TABLE_ROWS)]:
        row = [f"{t:.0f}"]
        for curve, _, band in columns:
            i = int(np.abs(band.x["rounds"] - t).argmin())
            value = float(band.mean[i])
            text = percent(value) if curve == "score" and metric.is_share else f"{value:.4f}"
            row.append(text if abs(band.x["rounds"][i] - t) < 1 else "")
        rows.append(row)
    return Table(["round", *(f"{_titles(metric)[curve]}: {label}" for curve, label, _ in columns)], rows)
