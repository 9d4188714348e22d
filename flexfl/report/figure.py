"""A plot of the page: Plotly traces for each position of its toggles, its legend, and the table behind it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

# After Okabe and Ito: distinguishable with colour blindness; those that are faint on white come last.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_LINES = len(SERIES) * len(DASHES)

Plot = dict[str, Any]
Content = TypeVar("Content")


class Toggle(NamedTuple):
    """A choice of one among several views: what it is about, and the options' keys and names."""

    name: str
    options: Mapping[str, str]


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


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes
    ----------
    name
        Of the page's element, without spaces.
    heading
        Above it.
    described
        What it shows, for those who do not see it.
    views
        For each combination of the toggles' options, joined by `|`, its `data` and `layout`.
    toggles, legend
        See `Toggle` and `Entry`; an entry without a group is a colour of cells.
    cells
        Rows of cells by name, one character each; traces name them as `cells` (see page.js).
    table
        The numbers, or a part of them.
    notes
        Sentences below.
    height
        In pixels.
    """

    name: str
    heading: str
    described: str
    views: Mapping[str, Plot]
    toggles: Sequence[Toggle] = ()
    legend: Sequence[Entry] = ()
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    table: Table | None = None
    notes: Sequence[str] = ()
    height: int = 460


def colour(i: int) -> str:
    """Return the colour of the i-th line."""
    return SERIES[i % len(SERIES)]


def dash(i: int) -> str:
    """Return the dash of the i-th line: another one when the colours begin again."""
    return DASHES[i // len(SERIES) % len(DASHES)]


def faint(hexadecimal: str, opacity: float) -> str:
    """Return a colour that lets others through."""
    red, green, blue = (int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def plain(text: object) -> str:
    """Return a text for Plotly, which would take tags for markup."""
    return html.escape(str(text), quote=False)


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Return numbers in few characters; what is not finite becomes None, a gap."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def axis(title: str = "", **more: Any) -> Plot:
    """Return an axis; the page adds colours."""
    return {"title": {"text": title, "standoff": 8}, "zeroline": False, **more}


def layout(**more: Any) -> Plot:
    """Return a layout; the page adds colours and the height."""
    return {
        "margin": {"l": 84, "r": 20, "t": 12, "b": 62},
        "showlegend": False,
        "hovermode": "closest",
        "dragmode": "zoom",
        **more,
    }


def merged(
    named: Iterable[tuple[str, Content]], same: Callable[[Content, Content], bool]
) -> list[tuple[str, Content]]:
    """Return what is named, each once, with the names of all that are the same."""
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
    """Return at most `most` of `count` positions at even distances, the last one among them."""
    if count <= most:
        return [*range(count)]
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def percent(value: float, digits: int = 2) -> str:
    """Return a share as text; nothing if it is not known."""
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else ""
