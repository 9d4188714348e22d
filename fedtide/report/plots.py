"""Parts of plots: Plotly traces, axes and layouts as dictionaries, and numbers as texts."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtide.ground.wording import plain as own_line
from fedtide.report.figure import Entry, Plot

# After Okabe and Ito: distinguishable with colour blindness; those that are faint on white come last.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("solid", "dash", "dot", "dashdot")
MAX_LINES = len(SERIES) * len(DASHES)
TIME_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1), ("milliseconds", 1e-3))
"""Names and sizes, in seconds, the largest first."""

MAX_NAME = 14  # characters of a name at an axis

Numbers = NDArray[np.float64]
Content = TypeVar("Content")


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
    shown = {"hovertemplate": f"{hover}<extra></extra>"} if hover else {"hoverinfo": "skip"}
    places = numbers(x)
    mode = "lines" if len(places) > 1 else "markers"
    return {"x": places, "y": numbers(y), "mode": mode, **shown, **more}


def band(x: Numbers, low: Numbers, high: Numbers, own: str, opacity: float) -> Plot:
    """Return the area between two curves."""
    red, green, blue = (int(own[i : i + 2], 16) for i in (1, 3, 5))
    fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},{opacity})"}
    return trace([*x, *x[::-1]], [*high, *low[::-1]], line={"width": 0}, mode="lines", **fill)


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
    """Return the name and the size of the largest unit of which so much time has two, or of the smallest."""
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


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` positions at even distances, including the last one."""
    return [*map(int, np.unique(np.linspace(0, count - 1, min(count, most)).round()))]


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


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """List names, the first ones if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def percent(value: float, digits: int = 2) -> str:
    """Return a share as text; nothing if it is unknown."""
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else ""
