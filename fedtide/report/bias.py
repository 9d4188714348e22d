"""Bias: clients' shares of the updates and their scores, against their rates of participation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedtide.base.wording import client_name
from fedtide.engine.client_numbers import ClientNumbers
from fedtide.engine.history import Numbers
from fedtide.report import plots
from fedtide.report.plots import Figure, Plot, Table

GROUPS = 5  # of clients with similar rates; a line connects their means
ABOUT_SHARES = (
    "Upper plot: the share of the model's updates that come from a client (computed for linear losses), "
    "divided by its share of the data: 1 is unbiased. Some methods weight clients equally, however many "
    "examples they have."
)

Dots = tuple[Numbers, Numbers]
"""Rates (0..1) and values of clients."""
Pair = tuple[float, float]
Groups = Mapping[str, Sequence[ClientNumbers]]
"""Numbers of the runs by their labels; those of a label differ only in the seed."""


def client_figure(groups: Groups, notes: Sequence[str], names: Mapping[str, Sequence[str]]) -> Figure | None:
    """Return the figure of finished runs, with notes on missing numbers; None if there are no numbers.

    `names` are those of the clients, by label.
    """
    shown = {label: group for label, group in [*groups.items()][: plots.MAX_LINES] if group}
    every = [own for group in shown.values() for own in group]
    if not every:
        return None
    first = every[0]
    metric = f"{first.metric}, %" if first.is_share else first.metric
    of_clients = f"{first.metric} on<br>own examples{', %' if first.is_share else ''}"
    about_scores = f"{first.metric.capitalize()} of the final global weights on {first.scores_on}."
    panels = (
        ("share of the updates<br>/ share of the data", _by_label(shown, _ratios), ABOUT_SHARES),
        (of_clients, _by_label(shown, _scores), about_scores),
    )
    drawn = {title: (dots, about) for title, dots, about in panels if dots}
    if not drawn:
        return None
    means = f"Each dot is a client; lines connect the means of {GROUPS} groups of clients with similar rates."
    own_notes = dict.fromkeys(note for own in every for note in own.notes)
    return bias_figure(
        {title: dots for title, (dots, _) in drawn.items()},
        "rate of participation: rounds with an update, %",
        [*groups],
        [*(about for _, about in drawn.values()), means, *own_notes, *notes],
        plots.table_of(
            [
                *("client", "rate of participation, %", "share of the data, %", "share of the updates, %"),
                metric,
            ],
            {label: _rows(group[0], names[label]) for label, group in shown.items()},
        ),
    )


def bias_figure(
    panels: Mapping[str, Mapping[str, Dots]],
    over: str,
    labels: Sequence[str],
    notes: Sequence[str],
    table: Table,
) -> Figure:
    """Return a figure of dots by label, and of their means, in one or two panels over the same axis.

    `panels` has the dots by label, by the title of the vertical axis; in one that has "/ share" in it, 1 is
    unbiased. `labels` are all of the page, in order: a label has the same colour in each figure.
    """
    drawn = [label for label in labels if any(label in dots for dots in panels.values())]
    data: list[Plot] = []
    anchor = "y2" if len(panels) > 1 else "y"
    made = plots.layout(xaxis=plots.axis(over.replace(": ", ":<br>"), anchor=anchor))
    for row, (title, dots) in enumerate(panels.items()):
        place, key, domain = plots.panel(row, len(panels))
        made[key] = plots.axis(title, domain=domain, rangemode="tozero")
        if "/ share" in title:
            values = np.concatenate([y for _, y in dots.values()])
            if values.min() > 0 and values.max() > 30 * values.min():
                made[key] |= {"type": "log", "dtick": 1}
            line = {"color": "#7F7F7F", "width": 1, "dash": "dot"}
            ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
            made["shapes"] = [{"type": "line", "line": line, **ends}]
        for label, (x, y) in dots.items():
            i, name = labels.index(label), plots.plain(label)
            common = {"yaxis": place, "legendgroup": label, "name": name}
            data += [_dots(100 * x, y, name, i, len(drawn)) | common, _means(100 * x, y, i) | common]
    return Figure(
        "bias",
        "Bias",
        f"Dots for clients of {plots.listed(drawn, 8)}, with the means of groups; the table has the numbers.",
        {"": {"data": data, "layout": made}},
        legend=plots.legend(labels, drawn),
        table=table,
        notes=notes,
        height=230 * len(panels) + 80,
    )


def _dots(x: Numbers, y: Numbers, name: str, i: int, labels: int) -> Plot:
    kept = np.argsort(x, kind="stable")[plots.sample(len(x), labels)]
    hover, marker = f"{name}<br>rate %{{x:.3~g}} %<br>%{{y:.3~g}}", plots.dots(i, len(kept), 0.45)
    return plots.trace(x[kept], y[kept], hover, mode="markers", marker=marker, cliponaxis=False)


def _means(x: Numbers, y: Numbers, i: int) -> Plot:
    """Return the line through the means of groups of clients with similar x; empty for one point."""
    groups = [part for part in np.array_split(np.argsort(x, kind="stable"), GROUPS) if len(part)]
    means: dict[float, list[float]] = {}
    for group in groups:  # those whose clients all have the same x are one
        means.setdefault(float(x[group].mean()), []).append(float(y[group].mean()))
    points = means if len(means) > 1 else {}
    averages = [float(np.mean(values)) for values in points.values()]
    return plots.trace(points, averages, mode="lines", line=plots.line(i))


def _by_label(groups: Groups, dots_of: Callable[[ClientNumbers], Iterator[Pair]]) -> dict[str, Dots]:
    found = {label: np.array([dot for own in of for dot in dots_of(own)]) for label, of in groups.items()}
    return {label: (dots[:, 0], dots[:, 1]) for label, dots in found.items() if len(dots)}


def _ratios(own: ClientNumbers) -> Iterator[Pair]:
    """Yield rates, and shares of the updates over shares of the data, of clients with data."""
    for rate, updates, data in zip(
        own.rates, own.update_shares, own.data_shares, strict=bool(own.update_shares)
    ):
        if data > 0:
            yield rate, updates / data


def _scores(own: ClientNumbers) -> Iterator[Pair]:
    for rate, score in zip(own.rates, own.scores, strict=bool(own.scores)):
        if score is not None:
            yield rate, (100 if own.is_share else 1) * score


def _rows(own: ClientNumbers, names: Sequence[str]) -> Iterator[list[str]]:
    for i, client in enumerate(own.clients):
        score = own.scores[i] if own.scores else None
        shown = "" if score is None else plots.percent(score) if own.is_share else f"{score:.4g}"
        updates = plots.percent(own.update_shares[i]) if own.update_shares else ""
        shares = (plots.percent(own.rates[i], 1), plots.percent(own.data_shares[i]), updates)
        yield [client_name(client, names), *shares, shown]
