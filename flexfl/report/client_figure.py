"""The plot of bias: whose updates count and whose data are predicted well, over how often they take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flexfl.report.client_numbers import ClientNumbers
from flexfl.report.figure import (
    MOST_LINES,
    Entry,
    Figure,
    Plot,
    Table,
    axis,
    colour,
    dash,
    layout,
    listed,
    numbers,
    percent,
    plain,
)
from flexfl.report.history import Numbers

GROUPS = 5  # of clients with neighbouring rates, whose means a line connects
MOST_DOTS = 3000  # of all methods together
TABLE_ROWS = 200


def client_figure(groups: Mapping[str, Sequence[ClientNumbers]], notes: Sequence[str]) -> Figure | None:
    """Return the plot; None if there are no numbers.

    Parameters
    ----------
    groups
        Numbers of the runs by their labels; those of a label differ in the seed.
    notes
        What is missing.
    """
    shown = {label: of for label, of in [*groups.items()][:MOST_LINES] if of}
    panels = {
        key: {label: points for label, of in shown.items() if len((points := found(of))[0])}
        for key, found in (("ratio", _ratios), ("score", _scores))
    }
    panels = {key: panel for key, panel in panels.items() if panel}
    if not panels:
        return None
    first = next(iter(shown.values()))[0]
    titles = {
        "ratio": "share of the updates<br>/ share of the data",
        "score": f"{first.metric} on<br>own examples{', %' if first.is_share else ''}",
    }
    about = {
        "ratio": "Upper plot: a client's share of all that the method applied to the weights, found by "
        "replaying the rounds with linear losses, over its share of the data: 1 is unbiased. Some methods "
        "count clients, not examples, alike.",
        "score": f"{first.metric.capitalize()}: of the final global weights on {first.scores_on}.",
    }
    own = dict.fromkeys(note for of in shown.values() for numbers in of for note in numbers.notes)
    means = (
        f"Each dot is a client; lines connect means of {GROUPS} groups of clients with neighbouring rates."
    )
    return bias_figure(
        panels,
        {key: titles[key] for key in panels},
        "rate of participation: rounds with an update, %",
        [*groups],
        [*(about[key] for key in panels), means, *own, *notes],
        _table(shown),
    )


def bias_figure(
    panels: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]],
    titles: Mapping[str, str],
    over: str,
    labels: Sequence[str],
    notes: Sequence[str],
    table: Table,
) -> Figure:
    """Return a plot of dots by label, and of their means, in panels below each other.

    Parameters
    ----------
    panels
        By name and label, x (rates, 0..1) and y of the dots.
    titles
        Of the panels' vertical axes.
    over
        Title of the horizontal axis.
    labels
        All of the page, in order: a label has the same colour in each of its plots.
    notes, table
        Of the figure.
    """
    drawn = [label for label in labels if any(label in panel for panel in panels.values())]
    data: list[Plot] = []
    made = layout(xaxis=axis(over.replace(": ", ":<br>"), anchor="y2" if len(panels) > 1 else "y"))
    for row, (key, panel) in enumerate(panels.items()):
        place = "y2" if row else "y"
        domain = [0, 1] if len(panels) == 1 else [[0.54, 1], [0, 0.46]][row]
        every = np.concatenate([y for _, y in panel.values()])
        wide = key == "ratio" and every.min() > 0 and every.max() > 30 * every.min()
        scale = {"type": "log", "dtick": 1} if wide else {"rangemode": "tozero"}
        made["yaxis2" if row else "yaxis"] = axis(titles[key], domain=domain, **scale)
        if key == "ratio":
            line = {"color": "#7F7F7F", "width": 1, "dash": "dot"}
            made["shapes"] = [
                {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": line}
            ]
        for label, (x, y) in panel.items():
            i = labels.index(label)
            data += _dots(100 * x, y, label, i, place, max(50, MOST_DOTS // len(drawn)))
    described = (
        f"Dots for clients of {listed(drawn, 8)}, with the means of groups; the table has the numbers."
    )
    return Figure(
        "bias",
        "Bias",
        described,
        {"": {"data": data, "layout": made}},
        legend=[Entry(label, colour(i), dash(i), label) for i, label in enumerate(labels) if label in drawn]
        if len(drawn) > 1
        else [],
        table=table,
        notes=notes,
        height=230 * len(panels) + 80,
    )


def _dots(x: Numbers, y: Numbers, label: str, i: int, place: str, most: int) -> list[Plot]:
    """Return the dots of a label, and the line of the means of groups with neighbouring x."""
    order = np.argsort(x, kind="stable")
    kept = order[:: -(-len(order) // most)]
    common = {"yaxis": place, "legendgroup": label, "name": plain(label)}
    hover = f"{plain(label)}<br>rate %{{x:.3~g}} %<br>%{{y:.3~g}}<extra></extra>"
    marker = {"color": colour(i), "size": 8 if len(kept) < 200 else 5, "opacity": 0.45}
    dots = {
        "x": numbers(x[kept], 4),
        "y": numbers(y[kept], 4),
        "mode": "markers",
        "marker": marker,
        "cliponaxis": False,
    }
    data: list[Plot] = [{**common, **dots, "hovertemplate": hover}]
    groups = [part for part in np.array_split(order, min(GROUPS, len(order))) if len(part)]
    at = np.array([x[group].mean() for group in groups])
    centres = np.unique(at)  # groups of clients with the same rate are one
    if len(centres) > 1:
        means = [
            np.mean([y[g].mean() for g, own in zip(groups, at, strict=True) if own == c]) for c in centres
        ]
        line = {"color": colour(i), "dash": dash(i), "width": 2}
        points = {"x": numbers(centres, 4), "y": numbers(map(float, means), 4)}
        data.append({**common, **points, "mode": "lines", "line": line, "hoverinfo": "skip"})
    return data


def _ratios(of: Sequence[ClientNumbers]) -> tuple[Numbers, Numbers]:
    """Return rates, and shares of the updates over shares of the data, of clients with data."""
    pairs = [
        (rate, share / data)
        for own in of
        if own.update_shares
        for rate, share, data in zip(own.rates, own.update_shares, own.data_shares, strict=True)
        if data > 0
    ]
    return _columns(pairs)


def _scores(of: Sequence[ClientNumbers]) -> tuple[Numbers, Numbers]:
    pairs = [
        (rate, 100 * score if own.is_share else score)
        for own in of
        if own.scores
        for rate, score in zip(own.rates, own.scores, strict=True)
        if score is not None
    ]
    return _columns(pairs)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    array = np.array(pairs, np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _table(groups: Mapping[str, Sequence[ClientNumbers]]) -> Table:
    """Return the clients of each label's first seed, up to a number of rows."""
    rows = []
    several = len(groups) > 1
    each = max(10, TABLE_ROWS // len(groups))
    for label, of in groups.items():
        own = of[0]
        for i, client in enumerate(own.clients[:each]):
            shares = [percent(own.update_shares[i])] if own.update_shares else [""]
            score = own.scores[i] if own.scores else None
            shown = "" if score is None else percent(score) if own.is_share else f"{score:.4g}"
            rates = [percent(own.rates[i], 1), percent(own.data_shares[i])]
            rows.append([*([label] if several else []), str(client), *rates, *shares, shown])
    head = ["runs"] if several else []
    first = next(iter(groups.values()))[0]
    metric = f"{first.metric}, %" if first.is_share else first.metric
    names = (
        "client",
        "rate of participation, %",
        "share of the data, %",
        "share of the updates, %",
        metric,
    )
    return Table([*head, *names], rows)
