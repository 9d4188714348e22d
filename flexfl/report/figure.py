"""A figure of the page: Plotly data and layout for each position of its toggles, its legend and its table."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

# After Okabe and Ito: distinguishable with colour blindness; those that are faint on white come last.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_LINES = len(SERIES) * len(DASHES)
_NUMBER = re.compile(r"[+-]?[\d.,]+( ± [\d.,]+)?|")

Numbers = NDArray[np.float64]
Plot = dict[str, Any]
Content = TypeVar("Content")


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
    group: str = ""
    is_area: bool = False


class Table(NamedTuple):
    """Headings and rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numeric(self) -> list[bool]:
        """Which columns have only numbers; they are aligned to the right."""
        return [all(_NUMBER.fullmatch(row[i]) for row in self.rows) for i in range(len(self.headings))]


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes
    ----------
    name
        Of the page's element, without spaces.
    heading
        Above it.
    description
        For screen readers.
    views
        For each combination of the toggles' options, joined by `|`, its `data` and `layout`.
    toggles, legend
        See `Toggle` and `Entry`; an entry without a group is a colour of cells.
    cells
        The `z` of heat maps, which traces of several views refer to by `cells`.
    table
        The numbers, or a part of them.
    notes
        Sentences below.
    height
        In pixels.
    """

    name: str
    heading: str
    description: str
    views: Mapping[str, Plot]
    toggles: Sequence[Toggle] = ()
    legend: Sequence[Entry] = ()
    cells: Mapping[str, Sequence[Sequence[float | None]]] = field(default_factory=dict)
    table: Table | None = None
    notes: Sequence[str] = ()
    height: int = 460


def colour(i: int) -> str:
    """Return the colour of the i-th line."""
    return SERIES[i % len(SERIES)]


def dash(i: int) -> str:
    """Return the dash of the i-th line: the next one when the colours repeat."""
    return DASHES[i // len(SERIES) % len(DASHES)]


def line_of(i: int) -> Plot:
    """Return the style of the i-th line."""
    return {"color": colour(i), "dash": dash(i), "width": 2}


def legend_of(labels: Sequence[str], drawn: Iterable[str]) -> list[Entry]:
    """Return the legend of the labels drawn; a single one needs none."""
    entries = [Entry(label, colour(i), dash(i), label) for i, label in enumerate(labels) if label in drawn]
    return entries if len(entries) > 1 else []


def area_between(x: Numbers, low: Numbers, high: Numbers, own: str, opacity: float) -> Plot:
    """Return a band between two curves."""
    red, green, blue = (int(own[i : i + 2], 16) for i in (1, 3, 5))
    return {
        "x": numbers([*x, *x[::-1]]),
        "y": numbers([*high, *low[::-1]]),
        "mode": "lines",
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},{opacity})",
        "hoverinfo": "skip",
    }


def plain(text: object) -> str:
    """Return a text for Plotly, which would take tags for markup."""
    return html.escape(str(text), quote=False)


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Return numbers in few characters; what is not finite becomes None, a gap."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def axis(title: str = "", **more: Any) -> Plot:
    """Return an axis; the page adds colours."""
    return {"title": {"text": title, "standoff": 8}, "zeroline": False, **more}


def panel(row: int, count: int) -> tuple[str, str, list[float]]:
    """Return a panel's vertical axis in traces and in the layout, and its domain; there are one or two."""
    domain = [0.0, 1.0] if count == 1 else [[0.54, 1.0], [0.0, 0.46]][row]
    return ("y2", "yaxis2", domain) if row else ("y", "yaxis", domain)


def layout(**more: Any) -> Plot:
    """Return a layout; the page adds colours and the height."""
    margin = {"l": 84, "r": 20, "t": 12, "b": 62}
    return {"margin": margin, "showlegend": False, "hovermode": "closest", "dragmode": "zoom", **more}


def bins(count: int, most: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the starts and lengths of at most `most` runs of neighbours that `count` values are put into."""
    starts = np.arange(min(count, most), dtype=np.intp) * count // max(1, min(count, most))
    return starts, np.diff([*starts, count])


def merged(
    named: Iterable[tuple[str, Content]], same: Callable[[Content, Content], bool]
) -> list[tuple[str, Content]]:
    """Return each of the contents once, with the names of all that are equal to it."""
    found: list[tuple[list[str], Content]] = []
    for name, own in named:
        names = next((names for names, other in found if same(own, other)), None)
        if names is None:
            found.append(([name], own))
        else:
            names.append(name)
    return [(listed(names, 3), content) for names, content in found]


def listed(names: Sequence[str], most: int) -> str:
    """List names, the first ones if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` positions at even distances, including the last one."""
    if count <= most:
        return [*range(count)]
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def percent(value: float, digits: int = 2) -> str:
    """Return a share as text; nothing if it is unknown."""
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else ""
