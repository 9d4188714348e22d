"""What a comparison returns: its runs, and in a notebook the table and a curve per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtide.comparison import claims, tables
from fedtide.comparison.bands import bands_of
from fedtide.comparison.methods import Baseline, label_of, without_seed
from fedtide.comparison.ranking import Ranking
from fedtide.comparison.results import CellRun, Row, rows_of
from fedtide.config import Settings
from fedtide.config.target import Target
from fedtide.engine.run_folder import finite

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

COMPARISON, CELLS = "comparison.json", "cells.json"  # in its folder, besides the tables

COLORS = ("#1f77b4", "#d95f02", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#17becf")
STYLE = "white-space:nowrap;border-collapse:separate;border-spacing:1em 0"  # of the table
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 50, 30  # of the plot; of its margins


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison.

    Attributes
    ----------
    runs
        The finished runs, with the settings that the comparison varies.
    folder
        With the tables and `report.html`.
    """

    runs: Sequence[CellRun]
    folder: Path
    baseline: Baseline | None = None  # what the others are compared to; None: the first method
    reach: Sequence[Target] = ()  # the targets to which costs are counted
    lacking: Sequence[claims.Lacking] = ()  # the runs that are not finished
    failed: Mapping[Settings, str] = field(default_factory=dict)  # why cells failed
    signal: int = 0  # number of the signal that ended it early

    @cached_property
    def rows(self) -> list[Row]:
        """The runs that differ in the seed only, and their numbers."""
        lacking = [without_seed(run.varied) for run in self.lacking]
        return rows_of(self.runs, self.baseline, self.reach, lacking)

    @cached_property
    def rankings(self) -> list[Ranking]:
        """How the methods rank over settings: by the final metric, and by the costs to each target."""
        return claims.rankings_of(self.rows, self.lacking)

    @property
    def claims(self) -> list[str]:
        """Which methods are told apart, in words."""
        return claims.sentences(self.rankings)

    @property
    def frame(self) -> pandas.DataFrame:
        """A row per combination of settings: mean, deviation and margin over seeds, costs."""
        import pandas

        return pandas.DataFrame([tables.numbers(row) for row in self.rows])

    def plot(self, value: str = "", x: str = "", ax: Axes | Sequence[Axes] | None = None) -> list[Axes]:
        """Draw the curves of all methods, on axes of matplotlib for each setting; see `Run.plot`.

        The default of `x` is `time` where asynchronous methods are among others. `ax` are as many axes as
        there are settings.
        """
        from fedtide.report.plotting import plot
        from fedtide.report.subject import Subject

        return plot(Subject(self.runs, baseline=self.baseline), value, x, ax)

    @property
    def exit_code(self) -> int:
        """0 if all cells are finished, 1 if some failed, 128 and the signal's number if one ended it."""
        return 128 + self.signal if self.signal else int(bool(self.failed))

    def as_json(self) -> dict[str, Any]:
        """Return the rows and what failed, for `--json`."""
        shown: dict[str, Any] = finite(
            {
                "rows": [row.as_json() for row in self.rows],
                "failed": {f"{s.strategy} seed {s.seed}": reason for s, reason in self.failed.items()},
                "folder": str(self.folder),
                "claims": [claims.as_json(ranking) for ranking in self.rankings],
                "interrupted": bool(self.signal),
            }
        )
        return shown

    def __repr__(self) -> str:
        return tables.markdown([tables.columns(row) for row in self.rows])

    def _repr_html_(self) -> str:
        return _html(self.rows)


def _html(rows: Sequence[Row]) -> str:
    """Return the table and the plot as HTML that needs neither a script nor a network."""
    shown = [tables.columns(row) for row in rows]
    names = tables.headings(shown)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    cells = ("".join(f"<td>{escape(row.get(name, ''))}</td>" for name in names) for row in shown)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    table = f'<table style="{STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x:auto">{table}</div>{_plot(rows)}'


def _plot(rows: Sequence[Row]) -> str:
    """Return the curves as SVG."""
    curves = [(row, bands_of([run for _, run in row.runs], row.metric.key, WIDTH)) for row in rows]
    bands = [(row, own["rounds"]) for row, own in curves if own]  # in at most a point per pixel
    if not bands:
        return ""
    values = np.concatenate([band.mean for _, band in bands])
    last = max(band.x[-1] for _, band in bands) or 1
    low, high = (0.0, 1.0) if rows[0].metric.is_share else _limits(values)

    def point(t: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 10) * t / last
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 10) * (value - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [_axis(low, high, int(last), rows[0].metric.title)]
    legend = []
    for number, (row, band) in enumerate(bands):
        color = COLORS[number % len(COLORS)]
        points = " ".join(map(point, band.x, band.mean))
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>')
        label = escape(label_of(row.varied) or row.runs[0].cell.settings.strategy)
        legend.append(f'<span style="color:{color}">&#9632;</span> {label}')
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="max-width:100%"'
    drawn = f'<svg {size} role="img">{"".join(parts)}</svg>'
    return f"<div>{drawn}</div><div>{' &ensp; '.join(legend)}</div>"


def _limits(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _axis(low: float, high: float, last: int, title: str) -> str:
    """Return the frame, the ends of both axes, and their names."""
    text = '<text x="{}" y="{}" text-anchor="{}" font-size="12" fill="currentColor">{}</text>'
    bottom = HEIGHT - BOTTOM
    frame = f'<path d="M{LEFT},10 V{bottom} H{WIDTH - 10}" fill="none" stroke="currentColor" opacity="0.5"/>'
    return frame + "".join(
        [
            text.format(LEFT - 5, bottom, "end", f"{low:.3g}"),
            text.format(LEFT - 5, 18, "end", f"{high:.3g}"),
            text.format(LEFT, bottom + 18, "start", 0),
            text.format(WIDTH - 10, bottom + 18, "end", last),
            text.format((WIDTH + LEFT) / 2, bottom + 18, "middle", "round"),
            text.format(LEFT + 8, 20, "start", escape(title)),
        ]
    )
