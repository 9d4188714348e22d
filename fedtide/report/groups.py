"""How well a model does for groups of clients, by round and in the end, and how clients differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedtide.comparison.bands import Band, bands_of
from fedtide.engine.client_numbers import ClientNumbers
from fedtide.engine.groups import BY_PARTICIPATION, NEVER, OF_DATA, QUARTERS
from fedtide.engine.read_run import Run
from fedtide.report import plots
from fedtide.report.plots import Figure, Plot, Table, Toggle
from fedtide.tasks import Metric

KINDS = {OF_DATA: "group", BY_PARTICIPATION: "participation"}
SPREAD = {
    **{"mean": "mean", "deviation": "standard deviation", "worst": "worst"},
    **{"tenth_percentile": "10th percentile", "jain_index": "Jain's index"},
}
POINTS = 200  # of a line
ABOUT = "Metrics of the members' held-out examples, those of a group taken together."
ABOUT_QUARTERS = (
    "Clients that took part at all are in quarters, divided at the quartiles of the number of rounds so far "
    "in which an update of theirs counted."
)


def groups_figures(runs: Mapping[str, Sequence[Run]], metrics: Sequence[Metric]) -> list[Figure | None]:
    """Return a figure of runs, by their labels, for each kind of group; None if they evaluated none of it."""
    return [_figure(kind, runs, metrics) for kind in KINDS]


def _figure(kind: str, runs: Mapping[str, Sequence[Run]], metrics: Sequence[Metric]) -> Figure | None:
    by_key, labels = {metric.key: metric for metric in metrics}, [*runs][: plots.MAX_RUNS]
    curves = {(label, key): dict(_curves(runs[label], kind, key)) for label in labels for key in by_key}
    names = _ordered(name for found in curves.values() for name in found)[: plots.MAX_LINES]
    if not names:
        return None
    toggles = [
        Toggle("Metric", {key: metric.title for key, metric in by_key.items()}),
        Toggle("With", {str(i): label for i, label in enumerate(labels)}),
    ]
    heading = f"Clients by {KINDS[kind]}"
    return Figure(
        f"groups-{kind}",
        heading,
        f"{heading}: lines of {plots.listed(names, 8)}; the table of the groups has the final numbers.",
        plots.views(toggles, lambda key, label: _view(curves[labels[int(label)], key], by_key[key], names)),
        toggles,
        legend=plots.legend(names, names),
        notes=[ABOUT, *([ABOUT_QUARTERS] if kind == BY_PARTICIPATION else [])],
        height=360,
    )


def groups_tables(
    numbers: Mapping[str, Sequence[ClientNumbers]], metrics: Sequence[Metric]
) -> list[tuple[str, Table]]:
    """Return tables of the final numbers, means over seeds, with their headings; none without hold-outs."""
    known = {label: own for label, own in numbers.items() if own and all(each.groups for each in own)}
    if not known:
        return []
    title, factor = plots.unit(metrics[0])
    spreads = {label: [_spread(own, factor)] for label, own in known.items()}
    groups = {label: _rows(own, metrics) for label, own in known.items()}
    units = [plots.unit(metric)[0] for metric in metrics]
    return [
        (f"{title[:1].upper()}{title[1:]}, over clients", plots.table_of([*SPREAD.values()], spreads)),
        ("Groups of clients", plots.table_of(["groups by", "group", "clients", "examples", *units], groups)),
    ]


def _curves(runs: Sequence[Run], kind: str, key: str) -> Iterator[tuple[str, Band]]:
    start, end = f"groups.{kind}.", f".{key}"
    columns = dict.fromkeys(name for run in runs for name in run.history.numbers)
    for column in columns:
        name = column.removeprefix(start).removesuffix(end)
        if column == f"{start}{name}{end}" and (band := bands_of(runs, column, POINTS).get("rounds")):
            yield name, band


def _view(found: Mapping[str, Band], metric: Metric, names: Sequence[str]) -> Plot:
    title, factor = plots.unit(metric)
    layout = plots.layout(xaxis=plots.axis("rounds", rangemode="tozero"), yaxis=plots.axis(title))
    data = [
        plots.trace(
            band.x,
            factor * band.mean,
            f"{plots.plain(name)}<br>round %{{x:.4~g}}<br>%{{y:.4~g}} {title}",
            line=plots.line(names.index(name)),
            name=plots.plain(name),
            legendgroup=name,
        )
        for name, band in found.items()
        if name in names
    ]
    return {"data": data, "layout": layout}


def _spread(own: Sequence[ClientNumbers], factor: float) -> list[str]:
    means = {key: _mean([each.spread.get(key) for each in own]) for key in SPREAD}
    return [_text(value * (1 if key == "jain_index" else factor), factor) for key, value in means.items()]


def _rows(own: Sequence[ClientNumbers], metrics: Sequence[Metric]) -> Iterator[list[str]]:
    """Yield a row for each group that any seed has."""
    for kind in KINDS:
        for name in _ordered(name for each in own for name in each.groups.get(kind, {})):
            of = [each.groups[kind][name] for each in own if name in each.groups.get(kind, {})]
            counts = (f"{_mean([one.get(key) for one in of]):.4g}" for key in ("clients", "examples"))
            factors = {metric.key: plots.unit(metric)[1] for metric in metrics}
            values = (
                _text(factor * _mean([one.get(key) for one in of]), factor) for key, factor in factors.items()
            )
            yield [KINDS[kind], name, *counts, *values]


def _ordered(names: Iterable[str]) -> list[str]:
    """Return the different names, those of quarters in their order, which one seed may lack."""
    order = {name: i for i, name in enumerate((NEVER, *QUARTERS))}
    return sorted(dict.fromkeys(names), key=lambda name: order.get(name, -1))


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else math.nan


def _text(value: float, factor: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}" if factor == 100 else f"{value:.4g}"
