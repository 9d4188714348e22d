"""The page of a report: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from flexfl.engine.run_folder import finite
from flexfl.report.figure import Entry, Figure, Table, Toggle
from flexfl.report.participation_figure import COLOURS
from flexfl.report.states import State

RADIOS = 6  # options at most; of more, one is selected from a list
DASHES = {"solid": "none", "dash": "6 3", "dot": "2 3", "dashdot": "7 3 2 3"}
NUMBER = re.compile(r"[+-]?[\d.,]+( ± [\d.,]+)?|")


@dataclass(frozen=True)
class Results:
    """The table of results, and as what it can be copied: a name and a text each."""

    table: Table
    copies: Sequence[tuple[str, str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """What a page shows.

    Attributes
    ----------
    title, subtitle
        At its top.
    warnings
        Sentences below them.
    facts
        The most important numbers, with their names.
    results
        The table of results.
    figures
        In order.
    absent
        Sentences on what is left out, by heading.
    settings
        Tables by heading.
    command
        What made the runs.
    text_tables
        Tables at the top, by heading.
    """

    title: str
    subtitle: str
    warnings: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    results: Results | None = None
    figures: Sequence[Figure] = ()
    absent: Sequence[tuple[str, str]] = ()
    settings: Sequence[tuple[str, Table]] = ()
    command: str = ""
    text_tables: Sequence[tuple[str, Table]] = ()


def render(page: Page) -> str:
    """Return the HTML."""
    from plotly.offline import get_plotlyjs  # not needed before

    sections: list[tuple[str, str, str]] = []  # name, heading, content
    if page.results is not None:
        sections.append(("results", "Results", _results(page.results)))
    sections += [(f"text-{i}", heading, _table(t)) for i, (heading, t) in enumerate(page.text_tables)]
    sections += [(figure.name, figure.heading, _figure(figure)) for figure in page.figures]
    sections += [(f"absent-{i}", h, _notes([text])) for i, (h, text) in enumerate(page.absent)]
    if page.settings or page.command:
        command = f"<h3>Command</h3><pre><code>{escape(page.command)}</code></pre>" if page.command else ""
        tables = "".join(f"<h3>{escape(heading)}</h3>{_table(table)}" for heading, table in page.settings)
        sections.append(("settings", "Settings", command + tables))
    parts = _parts()
    return Template(parts["html"]).substitute(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        warnings="".join(f'<p class="warning">{escape(text)}</p>' for text in page.warnings),
        facts=_facts(page.facts),
        links=" ".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in sections),
        sections="".join(_section(*section) for section in sections),
        css=Template(parts["css"]).substitute(light=_state_colours(0), dark=_state_colours(1)),
        js=Template(parts["js"]).substitute(),
        data=embedded(
            {"figures": {f.name: _data(f) for f in page.figures}, "states": [s.shown for s in State]}
        ),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
    )


def embedded(value: Any) -> str:
    """Return JSON that may stand in a script element."""
    text = json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _parts() -> dict[str, str]:
    """Return the HTML, CSS and JavaScript of page.md."""
    text = files("flexfl.report").joinpath("page.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def _state_colours(scheme: int) -> str:
    return " ".join(f"--state-{state.value}: {COLOURS[state][scheme]};" for state in State)


def _data(figure: Figure) -> dict[str, Any]:
    return {"views": figure.views, "cells": figure.cells, "height": figure.height}


def _section(name: str, heading: str, content: str) -> str:
    title = f'<h2 id="{name}-heading">{escape(heading)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-heading">{title}{content}</section>\n'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    shown = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts)
    return f'<dl class="facts">{"".join(shown)}</dl>'


def _results(results: Results) -> str:
    """Return the table, buttons that copy it, and the texts that they copy."""
    buttons = "".join(
        f'<button type="button" data-copies="copy-{i}">Copy as {escape(name)}</button>'
        for i, (name, _) in enumerate(results.copies)
    )
    texts = "".join(
        f'<textarea id="copy-{i}" readonly aria-label="Results as {escape(name)}">{escape(text)}</textarea>'
        for i, (name, text) in enumerate(results.copies)
    )
    return (
        f'{_table(results.table)}{_notes(results.notes)}<div class="copy">{buttons}'
        f'<span id="copied" role="status"></span></div><details><summary>As text</summary>{texts}</details>'
    )


def _figure(figure: Figure) -> str:
    toggles = "".join(_toggle(f"{figure.name}-{i}", toggle) for i, toggle in enumerate(figure.toggles))
    label = escape(f"{figure.heading}. {figure.described}")
    parts = [
        f'<div class="toggles">{toggles}</div>' if toggles else "",
        _legend([entry for entry in figure.legend if not entry.group], "states"),
        _legend([entry for entry in figure.legend if entry.group], "lines"),
        f'<div class="plot" role="img" aria-label="{label}" style="min-height:{figure.height}px"></div>',
        _notes(figure.notes),
    ]
    if figure.table is not None:
        summary = f"<summary>Table: {escape(figure.heading.lower())}</summary>"
        parts.append(f"<details>{summary}{_table(figure.table)}</details>")
    return "".join(parts)


def _toggle(name: str, toggle: Toggle) -> str:
    """Return radio buttons, or a list to select from; the first option is chosen."""
    options = [*toggle.options.items()]
    if len(options) > RADIOS or max(len(text) for _, text in options) > 40:
        shown = "".join(f'<option value="{escape(key)}">{escape(text)}</option>' for key, text in options)
        title = f'<span class="name">{escape(toggle.name)}</span>'
        return f'<label>{title}<select name="{name}">{shown}</select></label>'
    shown = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(key)}"{" checked" if not i else ""}>'
        f"<span>{escape(text)}</span></label>"
        for i, (key, text) in enumerate(options)
    )
    return f"<fieldset><legend>{escape(toggle.name)}</legend>{shown}</fieldset>"


def _legend(entries: Sequence[Entry], kind: str) -> str:
    """Return the legend; its lines are buttons that hide what they name."""
    if not entries:
        return ""
    shown = (
        f'<button type="button" aria-pressed="true" data-group="{escape(entry.group)}">'
        f"{_swatch(entry)}{escape(entry.name)}</button>"
        if entry.group
        else f"<span>{_swatch(entry)}{escape(entry.name)}</span>"
        for entry in entries
    )
    label = "Show or hide" if kind == "lines" else "Colours"
    return f'<div class="legend {kind}" role="group" aria-label="{label}">{"".join(shown)}</div>'


def _swatch(entry: Entry) -> str:
    colour = entry.colour if entry.colour.startswith("#") else f"var(--{entry.colour})"
    if entry.is_area:
        drawn = f'<rect x="1" y="1" width="14" height="12" style="fill:{colour};stroke:var(--faint)"/>'
        return f'<svg width="16" height="14" aria-hidden="true">{drawn}</svg>'
    line = f'stroke="{colour}" stroke-width="3" stroke-dasharray="{DASHES[entry.dash]}"'
    return f'<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" {line}/></svg>'


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _table(table: Table) -> str:
    """Return a table that scrolls by itself; columns of numbers are set to the right."""
    numeric = [all(NUMBER.fullmatch(row[i]) for row in table.rows) for i in range(len(table.headings))]
    kinds = [' class="number"' if is_numeric else "" for is_numeric in numeric]
    head = "".join(f'<th scope="col"{k}>{escape(h)}</th>' for k, h in zip(kinds, table.headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{escape(text)}</td>" for k, text in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" role="region" aria-label="Table" tabindex="0">{content}</div>'
