"""The page of a report, in HTML that works without a network: its contents, its texts and tables.

Plotly is inside, or in a file beside it that many pages share.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedtide.base import dotted
from fedtide.base.files import replacing
from fedtide.base.wording import count, duration
from fedtide.comparison import tables
from fedtide.comparison.comparison import Comparison
from fedtide.comparison.pivot import pivots_of
from fedtide.engine.client_states import State
from fedtide.engine.read_run import Run
from fedtide.engine.run_folder import finite
from fedtide.report.participation import COLOURS
from fedtide.report.plots import Figure, Table, columns_table, values_table
from fedtide.report.template import TEMPLATE

STROKES = {"solid": "none", "dash": "6 3", "dot": "2 3", "dashdot": "7 3 2 3"}  # of the legend's lines
MAX_WARNINGS = 10  # of each kind


@dataclass(frozen=True)
class Results:
    """The table of results, and the texts that it can be copied as, by name."""

    table: Table
    copies: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()
    grid: Table | None = None  # by method and setting


@dataclass(frozen=True)
class Page:
    """The contents of a page; pairs are a heading or name and its content."""

    title: str
    subtitle: str
    warnings: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()  # the most important numbers
    results: Results | None = None
    text_tables: Sequence[tuple[str, Table]] = ()  # above the figures
    figures: Sequence[Figure] = ()
    absent: Sequence[tuple[str, str]] = ()  # sentences about missing figures
    settings: Sequence[tuple[str, Table]] = ()
    command: str = ""  # that made the runs

    @property
    def sections(self) -> list[tuple[str, str]]:
        """Names and headings of the sections, in order."""
        return [
            *([("results", "Results")] if self.results else []),
            *((f"text-{i}", heading) for i, (heading, _) in enumerate(self.text_tables, start=1)),
            *((figure.name, figure.heading) for figure in self.figures),
            *((f"absent-{i}", heading) for i, (heading, _) in enumerate(self.absent, start=1)),
            *([("settings", "Settings")] if self.settings or self.command else []),
        ]


def render(page: Page, plotly: str = "") -> str:
    """Return the HTML; `plotly` is where Plotly is, else it is inside."""
    from jinja2 import Environment, StrictUndefined  # not needed before, like Plotly
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    figures = {f.name: {"views": f.views, "cells": f.cells, "height": f.height} for f in page.figures}
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(TEMPLATE).render(
        page=page,
        dashes=STROKES,
        states=[(state.shown, *COLOURS[state]) for state in State],
        data=Markup(embedded({"figures": figures, "states": [state.shown for state in State]})),
        address=plotly,
        plotly="" if plotly else Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )


def write_page(page: Page, file: Path, shared: Path | None = None) -> Path:
    """Write a page atomically, and return its path; OSError: that is impossible.

    `shared` is the folder of Plotly, which is written once, and which the page links to; None: it is inside.
    """
    library = "" if shared is None else os.path.relpath(_library_in(shared), file.parent)
    text = render(page, quote(library.replace(os.sep, "/")))
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def _library_in(folder: Path) -> Path:
    """Return the file of Plotly in a folder; pages that a later version makes link to another one."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version  # not needed before

    file = folder / f"plotly-{get_plotlyjs_version()}.min.js"
    if not file.exists():
        with replacing(file, file.with_name(f".{file.name}.{os.getpid()}")) as temporary:
            temporary.write_text(get_plotlyjs(), encoding="utf-8")
    return file


def embedded(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def title(subject: Comparison) -> str:
    """Return the page's title."""
    first = subject.runs[0].cell
    if subject.is_one_run:
        return dotted.shown(f"{first.settings.strategy} on {first.settings.task}")
    varied = ", ".join(key.replace("-", " ") for key in first.varied if key != "seed") or "seed"
    tasks = sorted({cell.settings.task for cell, _ in subject.runs})
    return f"Comparison by {varied} on {', '.join(tasks)}"


def subtitle(subject: Comparison) -> str:
    """Return the numbers of clients, rounds, seeds and runs."""
    runs = subject.runs
    clients, rounds, seeds = (
        sorted({getattr(cell.settings, key) for cell, _ in runs})
        for key in ("num_clients", "num_rounds", "seed")
    )
    parts = [f"{' or '.join(f'{n:,}' for n in clients)} clients"]
    up_to = "up to " if any(cell.settings.may_stop_early for cell, _ in runs) else ""
    parts += [f"{up_to}{' or '.join(f'{n:,}' for n in rounds)} rounds"]
    seed = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    if subject.is_one_run:
        return " · ".join([*parts, seed, runs[0].run.path.name])
    combinations = f"{count(len(subject.groups), 'combination')} of settings"
    return " · ".join([count(len(runs), "run"), combinations, seed, *parts])


def problems(subject: Comparison) -> list[str]:
    """Return sentences about runs that did not finish."""
    found = []
    for run in (run for _, run in subject.runs if run.problem):
        last = f"round {run.last_round}" if len(run.history) else "no round"
        name = "This run" if subject.is_one_run else f"Run {run.path.name}"
        found.append(f"{name} {run.problem}. Its records end with {last} of {run.settings.num_rounds}.")
    return [*found[:MAX_WARNINGS], *subject.missing[:MAX_WARNINGS]]


def facts(run: Run) -> list[tuple[str, str]]:
    """Return the most important numbers of a run."""
    last, history, metric = run.last_values, run.history, run.metric
    shown = [
        *(_fact(own.title, last.get(own.key), own.is_share) for own in run.measured),
        _fact("loss", last.get("loss")),
        _fact("training loss", last.get("train_loss")),
        _fact(f"{metric.title} at clients", last.get(f"client_{metric.key}"), metric.is_share),
        _fact("worst client", last.get(f"worst_client_{metric.key}"), metric.is_share),
        ("rounds", f"{run.last_round:,}"),
        ("client updates", f"{history.uploads.sum():,}"),
        _fact("seconds in rounds", run.summary.get("seconds"), digits=1),
        ("stopped by", run.stopped),
        ("virtual time", duration(float(np.nanmax(history.clock))) if history.has_clock else ""),
    ]
    return [(name, text) for name, text in shown if text]


def _fact(name: str, value: Any, is_share: bool = False, digits: int = 4) -> tuple[str, str]:
    """Return a number with its name, shares in percent; no text if it is unknown."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return name, ""
    return (f"{name}, %", f"{100 * value:,.2f}") if is_share else (name, f"{value:,.{digits}f}")


def results(subject: Comparison, claims: Sequence[str]) -> Results:
    """Return the table of results, with the claims below it."""
    rows = subject.rows
    grid = next((pivot for pivot in pivots_of(rows) if pivot.is_grid), None)
    bold = frozenset((i, j + 1) for i, j in grid.best) if grid else frozenset()
    return Results(
        columns_table(subject.columns),
        [("CSV", tables.comma_separated(rows)), ("Markdown", tables.markdown(subject.columns))],
        [] if subject.is_one_run else [*([grid.note] if grid else []), tables.caption(rows), *claims],
        Table(grid.headings, grid.texts, bold) if grid else None,
    )


def settings_tables(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """Return tables of the settings and versions, with all values that occur."""
    settings = values_table("setting", [{**run.settings.as_mapping(), **run.resolved} for run in runs])
    versions = values_table("package", [run.versions for run in runs])
    return [("Settings", settings), *([("Versions", versions)] if versions.rows else [])]
