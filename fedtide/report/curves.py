"""Metrics and loss against rounds, uploads, data and time: a line for each label, with a band over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtide.comparison.bands import Band, bands_of
from fedtide.comparison.claims import listed
from fedtide.config.target import OF_MEMBERS
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
HEIGHT = 250  # pixels of a curve
LOSS = Metric("loss", higher_is_better=False, is_share=False)
TITLES = {"train_loss": "training loss"}  # as elsewhere on the page
VALUES, MAIN = "Values", "main"  # the toggle of what is drawn, and its option for metrics and loss

Bands = Mapping[str, Mapping[str, Band]]
"""Of one curve, by label and axis."""
Panels = Mapping[str, Mapping[str, str]]
"""See `Comparison.panels`."""
Papers = Mapping[str, float | None]
"""The results that papers report, in percent, by label."""


class Curve(NamedTuple):
    """What evaluations have: its key in records, the title of its axis, the factor to its unit, its bands."""

    key: str
    title: str
    factor: float
    bands: Bands

    @property
    def every(self) -> list[Band]:
        """Its bands over all axes."""
        return [band for of in self.bands.values() for band in of.values()]

    @property
    def longest(self) -> int:
        """The most points that a line of it has."""
        return max(len(band.x) for band in self.every)


class Against(NamedTuple):
    """A horizontal axis: its key in bands, name, unit (may be empty), and the unit's size."""

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
    """Return the figure of what was evaluated, of runs by their labels; None if nothing was.

    Metrics and loss are shown together; what else evaluations have, such as the training loss, is to choose.
    """
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))[: plots.MAX_LINES]
    shown = [{name: panel[name] for name in names if name in panel} for panel in panels.values()]
    labels = [label for panel in shown for label in panel.values()]
    points = int(np.clip(MAX_POINTS / max(1, len(labels)), MIN_POINTS, 400))
    drawn = {label: groups[label] for label in labels}
    main = _curves([*metrics, LOSS], drawn, points)
    # Not what was evaluated in the end alone.
    more = [curve for curve in _curves(_others(metrics), drawn, points) if curve.longest > 1]
    if not main:
        return None
    axes = _axes(main)
    titles = listed([curve.title.partition(",")[0] for curve in main])
    title = f"{titles[:1].upper()}{titles[1:]}"
    values = {MAIN: (title, main)} | {
        own.key: (own.title.partition(",")[0].capitalize(), [own]) for own in more
    }
    toggles = [
        Toggle("Against", {key: own.name.capitalize() for key, (own, _) in axes.items()}),
        Toggle("With", {str(i): name for i, name in enumerate(panels)}),
        Toggle(VALUES, {key: name for key, (name, _) in values.items()}),
    ]
    switches, window = _switches(main)

    def draw(key: str, panel: str, value: str) -> Plot:
        reported = papers if values[value][1][0].key == metrics[0].key else {}
        return _view(values[value][1], shown[int(panel)], *axes[key], names, reported, window)

    return Figure(
        "curves",
        title,
        f"Lines of {titles} for {plots.listed(labels, 8)}; the table below has the numbers.",
        plots.views(toggles, draw),
        toggles,
        switches,
        plots.legend(names, names),
        table=_table(main),
        notes=_notes(groups, labels, papers, points, main),
        height=HEIGHT * len(main) + 60,
    )


def _others(metrics: Sequence[Metric]) -> list[Metric]:
    """Return what evaluations may have beside the metrics and the loss."""
    first = metrics[0]
    of_clients = [first._replace(name=f"{which}-{first.name}") for which in ("client", *OF_MEMBERS)]
    return [Metric("train-loss", False, False), *of_clients, Metric("client-loss", False, False)]


def _curves(metrics: Sequence[Metric], groups: Mapping[str, Sequence[Run]], points: int) -> list[Curve]:
    """Return the curves of those metrics that were evaluated."""
    found = []
    for metric in metrics:
        bands = {label: own for label, of in groups.items() if (own := bands_of(of, metric.key, points))}
        title, factor = plots.unit(metric)
        found += [Curve(metric.key, TITLES.get(metric.key, title), factor, bands)] if bands else []
    return found


def _axes(curves: Sequence[Curve]) -> dict[str, tuple[Against, float]]:
    """Return the axes with something to show and their ends, in the largest unit that fits.

    Time comes first if all runs have a clock.
    """
    every = [own for curve in curves for own in curve.bands.values()]
    keys = dict.fromkeys(key for own in every for key in own)
    ends = {key: max(float(np.nanmax(own[key].x)) for own in every if key in own) for key in keys}
    fitting: dict[str, Against] = {}
    for own in UNITS:
        if ends.get(own.key, 0) >= 2 * own.size:
            fitting.setdefault(own.key, own)
    axes = [Against("rounds", "rounds"), Against("uploads", "uploads"), *fitting.values()]
    if all("seconds" in own for own in every):
        axes.sort(key=lambda own: own.key != "seconds")
    return {own.key: (own, 1.02 * ends[own.key] / own.size) for own in axes}


def _notes(
    groups: Mapping[str, Sequence[Run]],
    labels: Sequence[str],
    papers: Papers,
    points: int,
    curves: Sequence[Curve],
) -> list[str]:
    notes = []
    if (seeds := max(len(groups[label]) for label in labels)) > 1:
        notes.append(f"Lines are means over up to {seeds} seeds; bands span the lowest to the highest seed.")
        notes.append("Uploads, data and time are means over the seeds, too, if these are evaluated alike.")
    drawn = [groups[label] for label in labels]
    if any(len({run.last_round for run in runs}) > 1 and any(run.stopped for run in runs) for runs in drawn):
        notes.append("Lines end where the first of their seeds has stopped.")
    keys = [curve.key for curve in curves]
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
    curves: Sequence[Curve],
    panel: Mapping[str, str],
    against: Against,
    end: float,
    names: Sequence[str],
    papers: Papers,
    window: int,
) -> Plot:
    """Return a panel's traces over one axis, the metrics above the loss; diamonds are at its end."""
    areas: list[Plot] = []
    lines: list[Plot] = []  # on top of all areas
    opacity = 0.2 if len(panel) <= FEW_LINES else 0.06
    anchor, _, _ = plots.panel(len(curves) - 1, len(curves))
    made = plots.layout(xaxis=plots.axis(against.title, anchor=anchor, rangemode="tozero"))
    for row, (curve, title, factor, bands) in enumerate(curves):
        place, key, domain = plots.panel(row, len(curves))
        made[key] = plots.axis(title, domain=domain, value=curve)
        if _may_be_logarithmic(curves[row]):
            made[key]["log"] = {"type": "log"}
        for line, label in panel.items():
            if (band := bands.get(label, {}).get(against.key)) is None:
                continue  # it has no clock, or was not evaluated
            i, x, name = names.index(line), band.x / against.size, plots.plain(line)
            common = {"yaxis": place, "legendgroup": line, "name": name}
            if (band.high > band.low).any():
                area = plots.band(x, factor * band.low, factor * band.high, plots.colour(i), opacity)
                areas.append(area | common)
            hover = f"{name}<br>%{{x:.4~g}} {plots.plain(against.title)}<br>%{{y:.4~g}} {title}"
            drawn = plots.trace(x, factor * band.mean, hover, line=plots.line(i), **common)
            if window and drawn["mode"] == "lines":
                drawn["smooth"] = {"y": plots.numbers(smoothed(np.array(drawn["y"], np.float64), window))}
            lines.append(drawn)
            if row == 0 and (paper := papers.get(label)) is not None:
                marker = {"symbol": "diamond-open", "size": 11, "color": plots.colour(i)}
                marker |= {"line": {"width": 2}}
                hover = f"{name}: the paper reports {paper:g} %"
                lines.append(plots.trace([end], [paper], hover, marker=marker, **common))
    return {"data": areas + lines, "layout": made, "height": HEIGHT * len(curves) + 60}


def _switches(curves: Sequence[Curve]) -> tuple[dict[str, str], int]:
    """Return the switches to averaged lines and logarithmic axes, and how many points to average."""
    switches, window = {}, 0
    longest = max(curve.longest for curve in curves)
    if longest >= MIN_SMOOTHED:
        window = max(3, longest // 15) | 1  # odd: as many points before as after
        switches["smooth"] = f"Moving average of {window} points"
    if logarithmic := [curve.title for curve in curves if _may_be_logarithmic(curve)]:
        switches["log"] = f"Logarithmic {listed(logarithmic)}"
    return switches, window


def _may_be_logarithmic(curve: Curve) -> bool:
    return curve.factor == 1 and all(bool((band.low > 0).all()) for band in curve.every)


def smoothed(values: Numbers, window: int) -> Numbers:
    """Return the moving average over an odd number of points, over fewer of them at the ends."""
    ones = np.ones(min(window, len(values) - 1 | 1))
    sums, counts = (np.convolve(each, ones, "same") for each in (values, np.ones(len(values))))
    averages: Numbers = sums / counts
    return averages


def _table(curves: Sequence[Curve]) -> Table:
    columns = [
        (curve, label, bands["rounds"])
        for curve in curves
        for label, bands in [*curve.bands.items()][: plots.MAX_LINES]
    ]
    longest = max((band.x for *_, band in columns), key=len)
    rows = []
    for t in longest[plots.thinned(len(longest), TABLE_ROWS)]:
        row = [f"{t:.0f}"]
        for curve, _, band in columns:
            i = int(np.abs(band.x - t).argmin())
            value = float(band.mean[i])
            text = plots.percent(value) if curve.factor == 100 else f"{value:.4f}"
            row.append(text if abs(band.x[i] - t) < 1 else "")
        rows.append(row)
    return Table(["round", *(f"{curve.title}: {label}" for curve, label, _ in columns)], rows)
