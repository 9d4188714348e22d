"""What a comparison returns: its runs, and in a notebook the table and the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtide.comparison import claims, tables
from fedtide.comparison.methods import Baseline, label_of, method_of, setting_of, without_seed
from fedtide.comparison.ranking import Ranking
from fedtide.comparison.results import CellRun, Row, rows_of
from fedtide.config import Settings
from fedtide.config.target import Target
from fedtide.engine.run_folder import finite
from fedtide.tasks import Metric

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

COMPARISON, CELLS = "comparison.json", "cells.json"  # in its folder, besides the tables

STYLE = "white-space:nowrap;border-collapse:separate;border-spacing:1em 0"  # of the table


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
    command: str = ""  # that made it; empty: there are several

    @cached_property
    def rows(self) -> list[Row]:
        """The runs that differ in the seed only, and their numbers."""
        runs = [
            CellRun(replace(cell, varied=cell.varied or {"strategy": cell.settings.strategy}), run)
            for cell, run in self.runs
            if len(run.history)
        ]
        lacking = [without_seed(run.varied) for run in self.lacking]
        return rows_of(runs, self.baseline, self.reach, lacking)

    @cached_property
    def columns(self) -> list[tables.Columns]:
        """The lines of its table."""
        return [tables.columns(row) for row in self.rows]

    @cached_property
    def rankings(self) -> list[Ranking]:
        """How the methods rank over settings: by the score, and by the costs to each target."""
        ended = [(cell, run) for cell, run in self.runs if run.problem]
        more = [claims.Lacking(cell.varied, run.status == "failed") for cell, run in ended]
        return claims.rankings_of(self.rows, [*self.lacking, *more])

    @property
    def claims(self) -> list[str]:
        """Which methods are told apart, in words."""
        return claims.sentences(self.rankings)

    @property
    def frame(self) -> pandas.DataFrame:
        """A row per combination of settings: mean, deviation and margin over seeds, costs."""
        import pandas

        return pandas.DataFrame([tables.numbers(row) for row in self.rows])

    @property
    def is_one_run(self) -> bool:
        """Whether it is a single run that is compared to nothing."""
        return len(self.runs) == 1 and not self.runs[0].cell.varied

    @property
    def missing(self) -> list[str]:
        """Sentences about the runs that are not finished."""
        return [
            f"{label_of(run.varied)}: {'failed' if run.failed else 'not finished'}" for run in self.lacking
        ]

    @property
    def metrics(self) -> Sequence[Metric]:
        """What was measured: the metric of the task first."""
        return self.runs[0].run.measured

    @property
    def metric(self) -> Metric:
        """The metric of the task."""
        return self.metrics[0]

    @property
    def main_axis(self) -> str:
        """The horizontal axis of its curves: time where rounds are not the same for all methods."""
        return "time" if len({cell.settings.round_ends for cell, _ in self.runs}) > 1 else "rounds"

    @property
    def groups(self) -> dict[str, list[CellRun]]:
        """The runs by labels that distinguish them; those of a group differ only in the seed."""
        groups: dict[str, list[CellRun]] = {}
        for found in self.runs:
            label = label_of(found.cell.others) or found.cell.settings.strategy
            groups.setdefault(label, []).append(found)
        return groups

    @property
    def panels(self) -> dict[str, dict[str, str]]:
        """The labels that are drawn together: by panel, a label for each name in it.

        In a grid, a panel is a setting, and names are methods; else there is one panel with all labels.
        """
        panels: dict[str, dict[str, str]] = {}
        for label, group in self.groups.items():
            varied = group[0].cell.others
            name = label_of(method_of(varied)) or group[0].cell.settings.strategy
            panels.setdefault(label_of(setting_of(varied)), {})[name] = label
        methods = {name for panel in panels.values() for name in panel}
        if len(methods) > 1 and 1 < len(panels) < len(self.groups):
            return panels
        return {"": {label: label for label in self.groups}}

    def plot(self, value: str = "", x: str = "", ax: Axes | Sequence[Axes] | None = None) -> list[Axes]:
        """Draw the curves of all methods, on axes of matplotlib for each setting; see `Run.plot`.

        The default of `x` is `time` where asynchronous methods are among others. `ax` are as many axes as
        there are settings.
        """
        from fedtide.report.plotting import plot

        return plot(self, value, x, ax)

    @property
    def exit_code(self) -> int:
        """0 if all cells are finished, 1 if some failed, 128 and the signal's number if one ended it."""
        return 128 + self.signal if self.signal else int(bool(self.failed))

    def as_json(self) -> dict[str, Any]:
        """Return the rows and what failed, for `--json`."""
        content = {
            "rows": [row.as_json() for row in self.rows],
            "failed": {f"{s.strategy} seed {s.seed}": reason for s, reason in self.failed.items()},
            "folder": str(self.folder),
            "claims": [claims.as_json(ranking) for ranking in self.rankings],
            "interrupted": bool(self.signal),
        }
        return dict(finite(content))

    def __repr__(self) -> str:
        return tables.markdown(self.columns)

    def _repr_html_(self) -> str:
        """Return the table and the curves as HTML that needs neither a script nor a network."""
        from fedtide.report.plotting import picture

        names = tables.headings(self.columns)
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        cells = ("".join(f"<td>{escape(row.get(name, ''))}</td>" for name in names) for row in self.columns)
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        table = f'<table style="{STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f'<div style="overflow-x:auto">{table}</div>{picture(self)}'
