"""Accuracy and loss against what they took: one line per method, with a band over seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flexfl.report.figure import (
    MOST_LINES,
    Entry,
    Figure,
    Plot,
    Table,
    Toggle,
    axis,
    colour,
    dash,
    faint,
    layout,
    listed,
    numbers,
    percent,
    plain,
    thinned,
)
from flexfl.report.history import History, Numbers
from flexfl.tasks import ACCURACY, Metric

MOST_POINTS = 4000  # of all lines together, but at least FEWEST and at most 400 of each
FEWEST = 60
FEW_LINES = 6  # of more, the bands are fainter
TABLE_ROWS = 40
CURVES = ("score", "loss")


@dataclass(frozen=True)
class Band:
    """A curve of runs that differ in the seed only.

    Attributes
    ----------
    x
        Means over the seeds of what it took: `rounds`, `uploads`, `megabytes`, `seconds`; each of shape (P,).
    mean, low, high
        Mean over seeds, lowest and highest; of several evaluations where they share a point.
    """

    x: Mapping[str, Numbers]
    mean: Numbers
    low: Numbers
    high: Numbers


def band_of(histories: Sequence[History], metric: str, points: int) -> Band | None:
    """Return the curve of `score` or `loss`; None if it was never evaluated."""
    columns = []
    for history in histories:
        values = getattr(history, metric)
        at = np.flatnonzero(np.isfinite(values))
        x = [history.rounds, history.uploads, history.megabytes, history.virtual_seconds]
        columns.append({int(history.rounds[i]): [values[i], *(column[i] for column in x)] for i in at})
    rounds = sorted({t for column in columns for t in column})
    if not rounds:
        return None
    missing = [np.nan] * 5
    every = np.array([[column.get(t, missing) for t in rounds] for column in columns])  # seeds, rounds, 5
    starts = np.arange(min(points, len(rounds))) * len(rounds) // min(points, len(rounds))
    counts = np.diff([*starts, len(rounds)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a clock that is not there is NaN throughout
        mean, *x = np.nanmean(every, axis=0).T
        low, high = np.nanmin(every[..., 0], axis=0), np.nanmax(every[..., 0], axis=0)

    def joined(values: Numbers) -> Numbers:
        return np.add.reduceat(values, starts) / counts

    names = ("rounds", "uploads", "megabytes", "seconds")
    return Band(
        {name: joined(values) for name, values in zip(names, x, strict=True)},
        joined(mean),
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
    )


def curves_figure(
    groups: Mapping[str, Sequence[History]], papers: Mapping[str, float | None], metric: Metric = ACCURACY
) -> Figure | None:
    """Return the plot of metric and loss; None if nothing was evaluated.

    Parameters
    ----------
    groups
        The runs by their labels.
    papers
        The numbers that papers report, in percent, by label.
    metric
        What the task reports.
    """
    shown = [*groups][:MOST_LINES]
    points = int(np.clip(MOST_POINTS / max(1, len(shown)), FEWEST, 400))
    bands = {
        curve: {label: band for label in shown if (band := band_of(groups[label], curve, points))}
        for curve in CURVES
    }
    bands = {curve: of for curve, of in bands.items() if of}
    if not bands:
        return None
    axes, scales = _axes([band for of in bands.values() for band in of.values()])
    views = {key: _view(bands, metric, key, scales[key], axes[key], shown, papers) for key in axes}
    several = max(len(groups[label]) for label in shown)
    notes = (
        [f"Lines: means over seeds, {several} at most; bands: lowest to highest seed."] if several > 1 else []
    )
    notes += ["Uploads, data and time of a line are means over its seeds, too."] if several > 1 else []
    if (most := max(-(-len(_evaluated(groups[label])) // points) for label in shown)) > 1:
        notes.append(f"A point stands for up to {most} evaluations: their mean, in the band all of them.")
    if len(shown) < len(groups):
        notes.append(f"The first {len(shown)} of {len(groups)} are drawn; the table of results has all.")
    if any(papers.get(label) is not None for label in shown):
        notes.append("Diamonds: the numbers that the paper reports, in percent.")
    return Figure(
        "curves",
        f"{metric.title.capitalize()} and loss",
        f"Lines of {metric.title} and loss for {listed(shown, 8)}; the table below has the numbers.",
        views,
        [Toggle("Against", {key: name.partition(",")[0].capitalize() for key, name in axes.items()})],
        [Entry(label, colour(i), dash(i), label) for i, label in enumerate(shown)] if len(groups) > 1 else [],
        table=_table(bands, metric),
        notes=notes,
        height=250 * len(bands) + 60,
    )


def _evaluated(histories: Sequence[History]) -> set[float]:
    return {float(t) for h in histories for t in h.rounds[np.isfinite(h.loss) | np.isfinite(h.score)]}


def _axes(bands: Sequence[Band]) -> tuple[dict[str, str], dict[str, float]]:
    """Return titles of the horizontal axes in units that fit, and what the numbers are divided by."""
    most = {key: max(np.nanmax(np.append(band.x[key], 0)) for band in bands) for key in bands[0].x}
    axes, scales = {"rounds": "rounds", "uploads": "uploads"}, {"rounds": 1.0, "uploads": 1.0}
    for size, unit in ((1e3, "GB"), (1, "MB"), (1e-3, "kB")):
        if most["megabytes"] >= 2 * size:
            axes["megabytes"], scales["megabytes"] = f"data sent both ways, {unit}", size
            break
    if most["seconds"]:
        for size, unit in ((86400, "days"), (3600, "hours"), (1, "seconds")):
            if most["seconds"] >= 2 * size:
                axes["seconds"], scales["seconds"] = f"virtual time, {unit}", size
                break
    return axes, scales


def _view(
    bands: Mapping[str, Mapping[str, Band]],
    metric: Metric,
    key: str,
    scale: float,
    title: str,
    shown: Sequence[str],
    papers: Mapping[str, float | None],
) -> Plot:
    """Return the traces over one horizontal axis, the metric above the loss."""
    areas: list[Plot] = []
    lines: list[Plot] = []  # on top of all areas
    opacity = 0.2 if len(shown) <= FEW_LINES else 0.06
    end = max(float(np.nanmax(np.append(b.x[key], 0))) for of in bands.values() for b in of.values()) / scale
    made = layout(xaxis=axis(title, anchor="y" if len(bands) == 1 else "y2", rangemode="tozero"))
    for row, (curve, of) in enumerate(bands.items()):
        title_y = _titles(metric)[curve]
        factor = 100 if curve == "score" and metric.is_share else 1
        place = "y2" if row else "y"
        domain = [0, 1] if len(bands) == 1 else [[0.54, 1], [0, 0.46]][row]
        made["yaxis2" if row else "yaxis"] = axis(title_y, domain=domain)
        for label, band in of.items():
            i = shown.index(label)
            x = band.x[key] / scale
            if not np.isfinite(x).any():
                continue  # this one has no clock
            common = {"yaxis": place, "legendgroup": label, "name": plain(label)}
            if (band.high > band.low).any():
                around = {
                    "x": numbers([*x, *x[::-1]]),
                    "y": numbers([*factor * band.high, *factor * band.low[::-1]]),
                }
                area = {"fill": "toself", "fillcolor": faint(colour(i), opacity), "line": {"width": 0}}
                areas.append({**common, **around, **area, "mode": "lines", "hoverinfo": "skip"})
            line = {"color": colour(i), "dash": dash(i), "width": 2}
            told = f"%{{x:.4~g}} {plain(title)}<br>%{{y:.4~g}} {title_y}"
            points = {"x": numbers(x), "y": numbers(factor * band.mean)}
            mode = "lines" if len(x) > 1 else "markers"
            lines.append(
                {
                    **common,
                    **points,
                    "mode": mode,
                    "line": line,
                    "hovertemplate": f"{plain(label)}<br>{told}<extra></extra>",
                }
            )
            if curve == "score" and papers.get(label) is not None:
                lines.append({**common, **_mark(1.02 * end, float(papers[label] or 0), colour(i), label)})
    return {"data": areas + lines, "layout": made}


def _mark(x: float, value: float, own: str, label: str) -> Plot:
    marker = {"symbol": "diamond-open", "size": 11, "color": own, "line": {"width": 2}}
    hover = f"{plain(label)}: the paper has {value:g} %<extra></extra>"
    return {"x": [x], "y": [value], "mode": "markers", "marker": marker, "hovertemplate": hover}


def _titles(metric: Metric) -> dict[str, str]:
    """Return what the curves are called."""
    return {"score": f"{metric.title}, %" if metric.is_share else metric.title, "loss": "loss"}


def _table(bands: Mapping[str, Mapping[str, Band]], metric: Metric) -> Table:
    """Return the means at some of the rounds."""
    columns = [(curve, label, band) for curve, of in bands.items() for label, band in of.items()]
    longest = max((band for _, _, band in columns), key=lambda band: len(band.mean))
    rounds = [float(longest.x["rounds"][i]) for i in thinned(len(longest.mean), TABLE_ROWS)]
    rows = []
    for t in rounds:
        row = [f"{t:.0f}"]
        for curve, _, band in columns:
            i = int(np.abs(band.x["rounds"] - t).argmin())
            near = abs(band.x["rounds"][i] - t) < 1
            value = float(band.mean[i])
            told = percent(value) if curve == "score" and metric.is_share else f"{value:.4f}"
            row.append(told if near else "")
        rows.append(row)
    return Table(["round", *(f"{_titles(metric)[curve]}: {label}" for curve, label, _ in columns)], rows)
