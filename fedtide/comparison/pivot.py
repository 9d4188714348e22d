"""The table of a paper: methods in rows, the settings in which they are compared in columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtide.base.wording import count
from fedtide.comparison.measures import Measure, measures_of, score_of
from fedtide.comparison.methods import label_of, method_of, setting_of, text_of
from fedtide.comparison.results import Row, paired
from fedtide.comparison.tables import Columns

MAX_COLUMNS = 12  # of a grid


class Pivot(NamedTuple):
    """The results of methods in settings, by one measure."""

    measure: Measure
    methods: Sequence[str]
    settings: Sequence[Mapping[str, str]]  # texts by key
    cells: Sequence[Sequence[Row | None]]  # by method and setting; None: it has not run
    best: frozenset[tuple[int, int]]  # positions of the best of each column, see `note`

    @property
    def is_grid(self) -> bool:
        """Whether there are several methods and several settings, and not too many of these."""
        return len(self.methods) > 1 and 1 < len(self.settings) <= MAX_COLUMNS

    @property
    def heading(self) -> str:
        """What its cells have."""
        return f"{self.measure.name}{self.measure.unit}"

    @property
    def headings(self) -> list[str]:
        """That, and a label for each setting."""
        return [self.heading, *map(label_of, self.settings)]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of the cells, each row after its method."""
        return [
            [method, *("" if row is None else self.measure.text(row) for row in line)]
            for method, line in zip(self.methods, self.cells, strict=True)
        ]

    @property
    def columns(self) -> list[Columns]:
        """Its rows for a table in Markdown."""
        lines = [
            [f"**{text}**" if (i, j) in self.best else text for j, text in enumerate(line, start=-1)]
            for i, line in enumerate(self.texts)
        ]
        return [dict(zip(self.headings, line, strict=True)) for line in lines]

    @property
    def note(self) -> str:
        """How many seeds there are, and what is bold."""
        seeds = sorted({len(row.runs) for line in self.cells for row in line if row})
        if seeds[-1] == 1:
            return "One seed. Bold: the best of each column."
        number = count(seeds[-1], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        return (
            f"Mean ± standard deviation over {number}. Bold: the best of each column, and those whose "
            "difference to it with the same seed has a 95 % interval that contains 0."
        )


def pivots_of(rows: Sequence[Row]) -> list[Pivot]:
    """Return a table for each measure, at least that of the task's metric; none without rows."""
    return [_pivot(rows, measure) for measure in measures_of(rows) or [score_of(rows)]] if rows else []


def _pivot(rows: Sequence[Row], measure: Measure) -> Pivot:
    strategy = rows[0].runs[0].cell.settings.strategy
    settings: dict[str, dict[str, str]] = {}
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        own = {key: text_of(value) for key, value in setting_of(row.varied).items()}
        settings[label_of(own)] = own
        lines.setdefault(label_of(method_of(row.varied)) or strategy, {})[label_of(own)] = row
    cells = [[line.get(setting) for setting in settings] for line in lines.values()]
    best = {(i, j) for j, column in enumerate(zip(*cells, strict=True)) for i in _best(column, measure)}
    return Pivot(measure, [*lines], [*settings.values()], cells, frozenset(best))


def _best(column: Sequence[Row | None], measure: Measure) -> list[int]:
    """Return the positions of the best row, and of those that paired seeds do not separate from it."""
    values = {i: measure.badness(row) for i, row in enumerate(column) if row is not None}
    means = {i: float(np.mean([*by_seed.values()])) for i, by_seed in values.items()}
    least = min(means.values())
    if math.isinf(least):
        return []
    first = min(means, key=lambda i: means[i])

    def is_alike(i: int) -> bool:
        difference = paired(values[i], values[first])
        return means[i] == least or (math.isfinite(means[i]) and difference.contains_zero)

    return [*filter(is_alike, means)]
