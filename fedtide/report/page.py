"""The page of a report: one HTML file that works without any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedtide.engine.run_folder import finite
from fedtide.report.participation import COLOURS, State
from fedtide.report.plots import Figure, Table
from fedtide.report.template import TEMPLATE

STROKES = {"solid": "none", "dash": "6 3", "dot": "2 3", "dashdot": "7 3 2 3"}  # of the legend's lines


@dataclass(frozen=True)
class Results:
    """The table of results, and the texts that it can be copied as, by name."""

    table: Table
    copies: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()
    grid: Table | None = None  # the final metric by strategy and other settings


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


def render(page: Page) -> str:
    """Return the HTML."""
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
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )


def embedded(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
