"""Metrics and loss against rounds, uploads, data and time: a line for each label, with a band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtide.comparison.claims import listed
from fedtide.comparison.results import Band, band_of
from fedtide.engine.history import Numbers
from fedtide.engine.read_run import Run
from fedtide.report import plots
from fedtide.report.plots import Figure, Plot, Table, Toggle
from fedtide.tasks import ACCURACY, Metric

MAX_POINTS = 4000  # of all lines together, but at least MIN_POINTS and at most 400 of each
MIN_POINTS = 60
FEW_LINES = 6  # of more, the bands are fainter
MIN_SMOOTHED = 5  # points of a line
TABLE_ROWS = 40

Bands = Mapping[str, Mapping[str, Band]]
"""By the key of the metric or `loss`, and label."""
Panels = Mapping[str, Mapping[str, str]]
"""See `Subject.panels`."""
Papers = Mapping[str, float | None]
"""The results that papers report, in percent, by label."""


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
    *(Against("seconds", "virtual time", *unit) for unit in plots.TIME_UNITS),
)


def curves_figure(
    groups: Mapping[str, Sequence[Run]],
    panels: Panels,
    papers: Papers,
    metrics: Sequence[Metric] = (ACCURACY,),
) -> Figure | None:
    """Return the figure of metrics and loss, of runs by their labels; None if nothing was evaluated."""
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))[: plots.MAX_LINES]
    shown = [{name: panel[name] for name in names if name in panel} for panel in panels.values()]
    labels = [label for panel in shown for label in panel.values()]
    points = int(np.clip(MAX_POINTS / max(1, len(labels)), MIN_POINTS, 400))
    bands = {
        curve: {label: band for label in labels if (band := band_of(groups[label], curve, points))}
        for curve in (*(metric.key for metric in metrics), "loss")
    }
    bands = {curve: group for curve, group in bands.items() if group}
    if not bands:
        return None
    axes = _axes([band for group in bands.values() for band in group.values()])
    toggles = [
        Toggle("Against", {key: own.name.capitalize() for key, (own, _) in axes.items()}),
        Toggle("With", {str(i): name for i, name in enumerate(panels)}),
    ]

    def draw(key: str, panel: str) -> Plot:
        return _view(bands, shown[int(panel)], metrics, *axes[key], names, papers)

    titles = listed([*(metric.title for metric in metrics), "loss"])
    views = plots.views(toggles, draw)
    return Figure(
        "curves",
        f"{titles[:1].upper()}{titles[1:]}",
        f"Lines of {titles} for {plots.listed(labels, 8)}; the table below has the numbers.",
        views,
        toggles,
        _switches([*views.values()], bands, metrics),
        plots.legend(names, names),
        table=_table(bands, metrics),
        notes=_notes(groups, labels, papers, points, metrics),
        height=250 * len(bands) + 60,
    )


def _axes(bands: Sequence[Band]) -> dict[str, tuple[Against, float]]:
    """Return the axes with something to show and their ends, in the largest unit that fits.

    Time comes first if all runs have a clock.
    """
    ends = {key: max(float(np.nanmax(np.append(band.x[key], 0))) for band in bands) for key in bands[0].x}
    fitting: dict[str, Against] = {}
    for own in UNITS:
        if ends[own.key] >= 2 * own.size:
            fitting.setdefault(own.key, own)
    axes = [Against("rounds", "rounds"), Against("uploads", "uploads"), *fitting.values()]
    if all(np.isfinite(band.x["seconds"]).any() for band in bands):
        axes.sort(key=lambda own: own.key != "seconds")
    return {own.key: (own, 1.02 * ends[own.key] / own.size) for own in axes}


def _notes(
    groups: Mapping[str, Sequence[Run]],
    labels: Sequence[str],
    papers: Papers,
    points: int,
    metrics: Sequence[Metric],
) -> list[str]:
    notes = []
    if (seeds := max(len(groups[label]) for label in labels)) > 1:
        notes.append(f"Lines are means over up to {seeds} seeds; bands span the lowest to the highest seed.")
        notes.append("Uploads, data and time are means over the seeds, too.")
    drawn = [groups[label] for label in labels]
    if any(len({run.last_round for run in runs}) > 1 and any(run.stopped for run in runs) for runs in drawn):
        notes.append("Lines end where the first of their seeds has stopped.")
    keys = [*(metric.key for metric in metrics), "loss"]
    evaluated = (
        {t for run in runs for t in run.history.rounds[run.history.evaluated(*keys)].tolist()}
        for runs in drawn
    )
    if (most := -(-max(map(len, evaluated)) // points)) > 1:
        notes.append(f"Each point is the mean of up to {most} evaluations; the band spans all of them.")
    if len(labels) < len(groups):
        notes.append(f"Only the first {len(labels)} of {len(groups)} are drawn; the results table has all.")
    if any(papers.get(label) is not None for label in labels):
        notes.append("Diamonds are the results that the paper reports, in percent.")
    return notes


def _view(
    bands: Bands,
    panel: Mapping[str, str],
    metrics: Sequence[Metric],
    against: Against,
    end: float,
    names: Sequence[str],
    papers: Papers,
) -> Plot:
    """Return a panel's traces over one axis, the metrics above the loss; diamonds are at its end."""
    areas: list[Plot] = []
    lines: list[Plot] = []  # on top of all areas
    opacity = 0.2 if len(panel) <= FEW_LINES else 0.06
    anchor = "y" if len(bands) == 1 else "y2"
    made = plots.layout(xaxis=plots.axis(against.title, anchor=anchor, rangemode="tozero"))
    for row, (curve, group) in enumerate(bands.items()):
        place, key, domain = plots.panel(row, len(bands))
        title, factor = _scale(curve, metrics)
        made[key] = plots.axis(title, domain=domain, value=curve)
        for line, label in panel.items():
            if (band := group.get(label)) is None:
                continue
            i, x, name = names.index(line), band.x[against.key] / against.size, plots.plain(line)
            if not np.isfinite(x).any():
                continue  # it has no clock
            common = {"yaxis": place, "legendgroup": line, "name": name}
            if (band.high > band.low).any():
                area = plots.band(x, factor * band.low, factor * band.high, plots.colour(i), opacity)
                areas.append(area | common)
            hover = f"{name}<br>%{{x:.4~g}} {plots.plain(against.title)}<br>%{{y:.4~g}} {title}"
            lines.append(plots.trace(x, factor * band.mean, hover, line=plots.line(i), **common))
            if curve == metrics[0].key and (paper := papers.get(label)) is not None:
                marker = {"symbol": "diamond-open", "size": 11, "color": plots.colour(i)}
                marker |= {"line": {"width": 2}}
                hover = f"{name}: the paper reports {paper:g} %"
                lines.append(plots.trace([end], [paper], hover, marker=marker, **common))
    return {"data": areas + lines, "layout": made}


def _switches(views: Sequence[Plot], bands: Bands, metrics: Sequence[Metric]) -> dict[str, str]:
    """Add averaged lines and logarithmic axes to the views; return the names of their switches."""
    switches = {}
    longest = max(len(band.mean) for group in bands.values() for band in group.values())
    if longest >= MIN_SMOOTHED:
        window = max(3, longest // 15) | 1  # odd: as many points before as after
        switches["smooth"] = f"Moving average of {window} points"
        for line in (trace for view in views for trace in view["data"]):
            if line["mode"] == "lines" and "fill" not in line:
                line["smooth"] = {"y": plots.numbers(smoothed(np.array(line["y"], np.float64), window))}
    logarithmic: list[str] = []
    for row, (curve, group) in enumerate(bands.items()):
        title, factor = _scale(curve, metrics)
        if factor == 1 and all(bool((band.low > 0).all()) for band in group.values()):
            logarithmic.append(title)
            for view in views:
                view["layout"][plots.panel(row, len(bands))[1]]["log"] = {"type": "log"}
    return switches | ({"log": f"Logarithmic {listed(logarithmic)}"} if logarithmic else {})


def smoothed(values: Numbers, window: int) -> Numbers:
    """Return the moving average over an odd number of points, over fewer of them at the ends."""
    ones = np.ones(min(window, len(values) - 1 | 1))
    sums, counts = (np.convolve(each, ones, "same") for each in (values, np.ones(len(values))))
    averages: Numbers = sums / counts
    return averages


def _scale(curve: str, metrics: Sequence[Metric]) -> tuple[str, float]:
    """Return the title of a curve's axis, and the factor to its unit, 100 for shares."""
    return next((plots.unit(metric) for metric in metrics if metric.key == curve), ("loss", 1.0))


def _table(bands: Bands, metrics: Sequence[Metric]) -> Table:
    columns = [
        (*_scale(curve, metrics), label, band)
        for curve, group in bands.items()
        for label, band in [*group.items()][: plots.MAX_LINES]
    ]
    longest = max((band for *_, band in columns), key=lambda band: len(band.mean)).x["rounds"]
    rows = []
    for t in longest[plots.thinned(len(longest), TABLE_ROWS)]:
        row = [f"{t:.0f}"]
        for _, factor, _, band in columns:
            i = int(np.abs(band.x["rounds"] - t).argmin())
            value = float(band.mean[i])
            text = plots.percent(value) if factor == 100 else f"{value:.4f}"
            row.append(text if abs(band.x["rounds"][i] - t) < 1 else "")
        rows.append(row)
    return Table(["round", *(f"{title}: {label}" for title, _, label, _ in columns)], rows)
