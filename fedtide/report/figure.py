"""A figure of the page: Plotly views for the positions of its toggles, its legend and its table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_NUMBER = re.compile(r"[+-]?[\d.,]+( ± [\d.,]+)?|")
MAX_VALUES = 12  # shown of a setting

Plot = dict[str, Any]


class Toggle(NamedTuple):
    """A choice of one among several views: its name, and the options' keys and names."""

    name: str
    options: Mapping[str, str]

    @property
    def is_long(self) -> bool:
        """Whether a list to select from has more room for the options than buttons."""
        return len(self.options) > 6 or max(map(len, self.options.values())) > 40


class Entry(NamedTuple):
    """A line of the legend; `group` is the `legendgroup` of the traces that it shows and hides."""

    name: str
    colour: str
    dash: str = "solid"
    group: str = ""  # empty: the entry is a colour of cells
    is_area: bool = False


class Table(NamedTuple):
    """Headings and rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()  # row and column of cells

    @property
    def numeric(self) -> list[bool]:
        """Which columns have only numbers; they are aligned to the right."""
        return [all(_NUMBER.fullmatch(row[i]) for row in self.rows) for i in range(len(self.headings))]


def values_table(column: str, mappings: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of keys with all the different values that they have, the first ones of many."""
    values: dict[str, dict[str, None]] = {}
    for key, value in (pair for mapping in mappings for pair in mapping.items()):
        text = ", ".join(value) if isinstance(value, list) else str(value)
        values.setdefault(key, {})[text or "(default)"] = None
    rows = []
    for key, texts in values.items():
        more = [f"and {len(texts) - MAX_VALUES} more"] if len(texts) > MAX_VALUES else []
        rows.append([key, " | ".join([*list(texts)[:MAX_VALUES], *more])])
    return Table([column, "version" if column == "package" else "value"], rows)


@dataclass(frozen=True)
class Figure:
    """A section of the page with a plot."""

    name: str  # of the page's element, without spaces
    heading: str
    description: str  # for screen readers
    views: Mapping[str, Plot]  # by the options of the toggles, joined by `|`: `data` and `layout`
    toggles: Sequence[Toggle] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    """Names by key: what a trace or an axis has under the key replaces its own while the switch is on."""
    legend: Sequence[Entry] = ()
    cells: Mapping[str, Sequence[Sequence[float | None]]] = field(default_factory=dict)
    """The `z` of heat maps, by the name that traces of several views have as `cells`."""
    table: Table | None = None
    notes: Sequence[str] = ()
    height: int = 460  # in pixels
