"""Figures of a page, and their parts: Plotly traces, axes and layouts as dictionaries; tables and texts."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.base.wording import plain as own_line
from fedtide.comparison.tables import headings
from fedtide.engine.history import Numbers
from fedtide.tasks import Metric

# After Okabe and Ito: distinguishable with colour blindness; those that are faint on white come last.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_LINES = len(SERIES) * len(DASHES)
TIME_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1), ("milliseconds", 1e-3))
"""Names and sizes, in seconds, the largest first."""
MAX_RUNS = 12  # that a figure shows one by one
DOT = 8  # pixels
MAX_DOTS = 3000  # of all labels together, but at least 50 of each
TABLE_ROWS = 600  # of all runs together, but at least 10 of each
MAX_NAME = 14  # characters of a name at an axis
MAX_VALUES = 12  # shown of a setting
_NUMBER = re.compile(r"[+-]?[\d.,]+( ± [\d.,]+)?|")

Plot = dict[str, Any]
Content = TypeVar("Content")


class Toggle(NamedTuple):
    """A choice of one among several views: its name, and the options' keys and names."""

    name: str
    options: Mapping[str, str]

    @property
    def is_choice(self) -> bool:
        """Whether there is anything to choose."""
        return len(self.options) > 1

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


@dataclass(frozen=True)
class Figure:
    """A section of the page with a plot."""

    name: str  # of the page's element, without spaces
    heading: str
    description: str  # for screen readers
    views: Mapping[str, Plot]
    """By the options of the toggles, joined by `|`: `data` and `layout`, and `height` if it is another."""
    toggles: Sequence[Toggle] = ()  # those with one option are not shown
    switches: Mapping[str, str] = field(default_factory=dict)
    """Names by key. While a switch is on, traces and axes are updated with their values under its key."""
    legend: Sequence[Entry] = ()
    cells: Mapping[str, Sequence[Sequence[float | None]]] = field(default_factory=dict)
    """The `z` of heat maps, by the name that traces of several views have as `cells`."""
    table: Table | None = None
    notes: Sequence[str] = ()
    height: int = 460  # in pixels

    @property
    def choices(self) -> list[Toggle]:
        """The toggles to choose with."""
        return [toggle for toggle in self.toggles if toggle.is_choice]


def views(toggles: Sequence[Toggle], draw: Callable[..., Plot]) -> dict[str, Plot]:
    """Draw a view for each combination of options, under the key by which the page looks it up."""
    return {
        "|".join(key for key, toggle in zip(keys, toggles, strict=True) if toggle.is_choice): draw(*keys)
        for keys in itertools.product(*(toggle.options for toggle in toggles))
    }


def table_of(
    headings: Sequence[str], runs: Mapping[str, Iterable[Sequence[str]]], column: str = "runs"
) -> Table:
    """Return a table of the first rows of each run, with a column of their names if there are several."""
    share, several = max(10, TABLE_ROWS // len(runs)), len(runs) > 1
    rows = [
        [*([name] if several else []), *row]
        for name, own in runs.items()
        for row in itertools.islice(own, share)
    ]
    return Table([*([column] if several else []), *headings], rows)


def columns_table(rows: Sequence[Mapping[str, str]]) -> Table:
    """Make a table of rows that map headings to cells; empty columns are left out."""
    names = headings(rows)
    return Table(names, [[row.get(name, "") for name in names] for row in rows])


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


def colour(i: int) -> str:
    """Return the colour of the i-th line."""
    return SERIES[i % len(SERIES)]


def line(i: int) -> Plot:
    """Return the style of the i-th line: the next dash when the colours repeat."""
    return {"color": colour(i), "dash": DASHES[i // len(SERIES) % len(DASHES)], "width": 2}


def legend(labels: Sequence[str], drawn: Iterable[str]) -> list[Entry]:
    """Return the legend of the labels drawn; a single one needs none."""
    entries = [
        Entry(label, line(i)["color"], line(i)["dash"], label)
        for i, label in enumerate(labels)
        if label in drawn
    ]
    return entries if len(entries) > 1 else []


def trace(x: Iterable[float], y: Iterable[float], hover: str = "", **more: Any) -> Plot:
    """Return a trace: a line, or a dot if it has a single point; `hover` is a template of Plotly."""
    shown: Plot = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    places = numbers(x)
    mode = "lines" if len(places) > 1 else "markers"
    if mode == "markers" and "color" in more.get("line", {}):
        shown["marker"] = {"color": more["line"]["color"], "size": DOT}
    return {"x": places, "y": numbers(y), "mode": mode, **shown, **more}


def band(x: Numbers, low: Numbers, high: Numbers, own: str, opacity: float) -> Plot:
    """Return the area between two curves."""
    red, green, blue = (int(own[i : i + 2], 16) for i in (1, 3, 5))
    fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},{opacity})"}
    return trace([*x, *x[::-1]], [*high, *low[::-1]], line={"width": 0}, mode="lines", **fill)


def dots(i: int, number: int, opacity: float) -> Plot:
    """Return the style of the i-th label's dots, smaller if there are many."""
    return {"color": colour(i), "size": DOT if number < 200 else 5, "opacity": opacity}


def plain(text: object) -> str:
    """Return a text for Plotly, which would take tags for markup."""
    return html.escape(str(text), quote=False)


def numbers(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Return numbers in few characters; those that are not finite become None, a gap."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def date(seconds: float) -> str:
    """Return a time of the calendar, in UTC, from the seconds since 1970."""
    return datetime.fromtimestamp(round(seconds), UTC).strftime("%Y-%m-%d %H:%M:%S")


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the name and size of the largest unit that fits at least twice, or of the smallest."""
    return next((unit for unit in TIME_UNITS if seconds >= 2 * unit[1]), TIME_UNITS[-1])


def axis(title: str = "", **more: Any) -> Plot:
    """Return an axis; the page adds colours."""
    return {"title": {"text": title, "standoff": 8}, "zeroline": False, **more}


def client_ticks(places: Iterable[float], clients: Iterable[int], devices: Sequence[str]) -> Plot:
    """Return for an axis the clients at some places: the names of their devices, or their numbers."""
    names = [devices[k] if k < len(devices) and devices[k] else str(k) for k in clients]
    texts = [plain(own_line(name, MAX_NAME)) for name in names]
    return {"tickvals": [*places], "ticktext": texts, "automargin": True}


def panel(row: int, count: int) -> tuple[str, str, list[float]]:
    """Return a panel's vertical axis in traces and in the layout, and its domain; the first is on top."""
    gap = 0.16 / max(2, count)
    height = (1 - gap * (count - 1)) / count
    low = (count - 1 - row) * (height + gap)
    number = str(row + 1) if row else ""
    return f"y{number}", f"yaxis{number}", [round(low, 4), round(low + height, 4)]


def panels_of(view: Plot) -> dict[str, Plot]:
    """Return the vertical axes of a view by the names that traces have for them, the upper one first."""
    axes = {key.replace("axis", ""): axis for key, axis in view["layout"].items() if key.startswith("yaxis")}
    return dict(sorted(axes.items(), key=lambda of: -of[1].get("domain", [0, 1])[0]))


def layout(**more: Any) -> Plot:
    """Return a layout; the page adds colours and the height."""
    margin = {"l": 84, "r": 20, "t": 12, "b": 62}
    return {"margin": margin, "showlegend": False, "hovermode": "closest", "dragmode": "zoom", **more}


def ratios(values: NDArray[Any], by: NDArray[Any]) -> Numbers:
    """Return the values divided by others of the same shape; NaN where these are 0."""
    return np.asarray(np.divide(values, by, out=np.full(by.shape, np.nan), where=by > 0))


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` positions at even distances, including the last one."""
    return [*map(int, np.unique(np.linspace(0, count - 1, min(count, most)).round()))]


def sample(count: int, labels: int) -> list[int]:
    """Return the positions of the dots to draw, of `count` dots of one of several labels."""
    return thinned(count, max(50, MAX_DOTS // labels))


def merged(
    named: Iterable[tuple[str, Content]], same: Callable[[Content, Content], bool]
) -> tuple[dict[str, Content], list[str]]:
    """Return different contents by the names of all that have them, the first ones of many; and a note."""
    found: list[tuple[list[str], Content]] = []
    for name, own in named:
        names = next((names for names, other in found if same(own, other)), None)
        if names is None:
            found.append(([name], own))
        else:
            names.append(name)
    notes = [f"Only the first {MAX_RUNS} of {len(found)} runs are shown."] if len(found) > MAX_RUNS else []
    return {listed(names, 3): content for names, content in found[:MAX_RUNS]}, notes


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """List names, the first ones if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def unit(metric: Metric) -> tuple[str, float]:
    """Return the title of a metric's axis, and the factor to its unit: percent for shares."""
    return (f"{metric.title}, %", 100.0) if metric.is_share else (metric.title, 1.0)


def percent(value: float, digits: int = 2) -> str:
    """Return a share as text; nothing if it is unknown."""
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else ""
