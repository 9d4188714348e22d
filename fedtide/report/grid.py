"""The grid of a comparison: a row for each strategy, a column for each combination of the other settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedtide.comparison.results import Row, label_of
from fedtide.comparison.tables import mean_and_deviation, number_of
from fedtide.report.figure import Table

MAX_COLUMNS = 12


def grid_of(rows: Sequence[Row], panels: Mapping[str, Mapping[str, str]]) -> Table | None:
    """Return the final metric by strategy and panel, see `Subject.panels`; None if that is not a grid.

    The best of each column is bold; strategies are in the order of their means over all columns.
    """
    if not 1 < len(panels) <= MAX_COLUMNS:
        return None
    by_label = {label_of(row.varied): row for row in rows}
    metric = rows[0].metric
    number, unit = number_of(metric)
    columns = [{name: by_label.get(label) for name, label in panel.items()} for panel in panels.values()]

    def badness(strategy: str, several: Sequence[Mapping[str, Row | None]]) -> float:
        """Return the mean over some columns, lower if better; infinite if the strategy lacks one."""
        finals = [row.final.mean if (row := column.get(strategy)) else math.nan for column in several]
        mean = sum(finals) / len(finals) * (-1 if metric.higher_is_better else 1)
        return math.inf if math.isnan(mean) else mean

    order = sorted({name: None for column in columns for name in column}, key=lambda s: badness(s, columns))
    finals = [[row.final if row else None for row in map(column.get, order)] for column in columns]
    cells = [[mean_and_deviation(final, number) for final in column] for column in finals]
    bold = frozenset(
        (row, i)
        for i, column in enumerate(columns, start=1)
        for row, strategy in enumerate(order)
        if badness(strategy, [column]) == min(badness(other, [column]) for other in order)
    )
    headings = [f"{metric.title}{unit}", *panels]
    return Table(headings, [list(row) for row in zip(order, *cells, strict=True)], bold)
