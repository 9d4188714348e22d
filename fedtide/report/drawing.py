"""Draws views of a page on axes of matplotlib: what our figures use of Plotly, and no more."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import LogLocator, MultipleLocator, NullFormatter, StrMethodFormatter

from fedtide.engine.client_states import State
from fedtide.engine.history import Numbers
from fedtide.report.participation import COLOURS
from fedtide.report.plots import DASHES, SERIES, Figure, Plot

POINTS = 0.55  # of print, for a pixel of the page
DASHED: dict[str, Any] = {
    **{"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": (0, (5, 1.5, 1, 1.5))}
}
SYMBOLS = {"circle": "o", "star": "*", "diamond": "D"}  # of dots; hollow ones end with `-open`
MAX_NAME = 34  # characters of a line at a tick
MARKED = 6  # points of a line that have its marker
LINES: Plot = {"color": "#8c9299", "linewidth": 0.6, "zorder": 0.5}  # across a panel
STATES = ListedColormap([COLOURS[state][0] for state in State])


def in_lines(text: str, width: int = 200) -> str:
    """Return a text in lines of at most so many characters, without what would begin a formula."""
    wrapped = (
        part for line in text.splitlines() for part in textwrap.wrap(line, width, break_on_hyphens=False)
    )
    return "\n".join(wrapped).replace("$", r"\$")


def plain_text(markup: object, width: int = 200) -> str:
    """Return the text of Plotly's markup, see `in_lines`."""
    return in_lines(html.unescape(str(markup).replace("<br>", "\n")), width)


def look_of(figure: Figure, group: str | None) -> Plot:
    """Return how the lines and dots of a group look, by the style in use; nothing if it has no legend."""
    entry = next((entry for entry in figure.legend if entry.group == group and not entry.is_area), None)
    if not group or entry is None:
        return {}
    if entry.colour not in SERIES:
        return {"color": entry.colour, "linestyle": DASHED[entry.dash], "marker": ""}
    looks = [*mpl.rcParams["axes.prop_cycle"]]
    number = SERIES.index(entry.colour) + len(SERIES) * DASHES.index(entry.dash)
    return dict(looks[number % len(looks)])


def draw(figure: Figure, view: Plot, panels: Mapping[str, Axes]) -> None:
    """Draw panels of a view, by the names that traces have for them; the last one has the titled x axis."""
    layout = view["layout"]
    is_calendar = any(isinstance(x, str) for trace in view["data"] for x in trace["x"][:1])
    for panel, axes in panels.items():
        if is_calendar:
            locator = AutoDateLocator(maxticks=5)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        drawing = _Panel(figure, axes, layout)
        for trace in view["data"]:
            if trace.get("yaxis", "y") == panel:
                drawing.add(trace)
        _set_axis(axes, "x", layout["xaxis"], is_titled=panel == [*panels][-1])
        _set_axis(axes, "y", layout[panel.replace("y", "yaxis")])
        for shape in layout.get("shapes", ()):
            if shape.get("yref") == "paper":
                axes.axvline(shape["x0"], **LINES)
            elif panel == "y":
                axes.axhline(shape["y0"], linestyle=DASHED[shape["line"]["dash"]], **LINES)


class _Panel:
    """Draws traces on axes, one after the other; bars and areas may be stacked on those before."""

    def __init__(self, figure: Figure, axes: Axes, layout: Plot) -> None:
        self.figure, self.axes, self.layout = figure, axes, layout
        self.top: Numbers | float = 0.0  # of what is stacked

    def add(self, trace: Plot) -> None:
        """Draw a trace."""
        if trace.get("type") == "heatmap":
            self._heat_map(trace)
        elif trace.get("type") == "bar":
            self._bars(trace)
        elif "stackgroup" in trace:
            self._stacked(trace)
        elif "fill" in trace:
            self._band(trace)
        elif trace["mode"] == "text":
            size = mpl.rcParams["legend.fontsize"]
            self.axes.text(
                trace["x"][0], trace["y"][0], plain_text(trace["text"]), fontsize=size, va="center"
            )
        elif trace["mode"] == "markers":
            self._dots(trace)
        elif trace["x"]:
            self._line(trace)

    def _look(self, trace: Plot, otherwise: Plot) -> Plot:
        return look_of(self.figure, trace.get("legendgroup")) or otherwise

    def _line(self, trace: Plot) -> None:
        own, count = trace["line"], len(trace["x"])
        plain = {"color": own["color"], "linestyle": DASHED[own.get("dash", "solid")], "marker": ""}
        look = self._look(trace, plain)
        every = max(1, count // MARKED)
        first = 2 * len(self.axes.get_lines()) % every
        width, ends = POINTS * own.get("width", 2), trace.get("cliponaxis", True)
        look |= {"linewidth": width, "markevery": (first, every), "clip_on": ends}
        self.axes.plot(_numbers(trace["x"]), _numbers(trace["y"]), **look)

    def _dots(self, trace: Plot) -> None:
        own = trace["marker"]
        look = self._look(trace, {"color": own["color"]})
        symbol, is_open = own.get("symbol", ""), own.get("symbol", "").endswith("-open")
        shape = SYMBOLS[symbol.removesuffix("-open")] if symbol else look.get("marker") or "o"
        more: Plot = {"facecolors": "none" if is_open else look["color"], "edgecolors": look["color"]}
        more |= {"linewidths": 0.8 if is_open else 0, "alpha": own.get("opacity"), "zorder": 3}
        sizes = (POINTS * np.asarray(own["size"], np.float64)) ** 2
        more |= {"marker": shape, "clip_on": trace.get("cliponaxis", True)}
        self.axes.scatter(_numbers(trace["x"]), _numbers(trace["y"]), sizes, **more)

    def _stacked(self, trace: Plot) -> None:
        low, self.top = self.top, self.top + _numbers(trace["y"])
        self.axes.fill_between(_numbers(trace["x"]), low, self.top, color=trace["fillcolor"], linewidth=0)

    def _band(self, trace: Plot) -> None:
        """Draw the area between two curves; the lower one comes second, backwards."""
        *rgb, alpha = map(float, trace["fillcolor"].removeprefix("rgba(").rstrip(")").split(","))
        colour = self._look(trace, {"color": [part / 255 for part in rgb]})["color"]
        x, y = _numbers(trace["x"]), _numbers(trace["y"])
        half = len(x) // 2
        self.axes.fill_between(x[:half], y[half:][::-1], y[:half], color=colour, alpha=alpha, linewidth=0)

    def _bars(self, trace: Plot) -> None:
        is_flat = trace.get("orientation") == "h"
        places, sizes = (trace["y"], trace["x"]) if is_flat else (trace["x"], trace["y"])
        begin: Any = _numbers(trace["base"]) if "base" in trace else self.top
        if self.layout.get("barmode") == "stack":
            self.top = self.top + _numbers(sizes)
        names = [plain_text(name, MAX_NAME) for name in places if isinstance(name, str)]
        at = [*range(len(names))] if names else places
        width = trace.get("width", 1 - self.layout.get("bargap", 0.2))
        colour = self._look(trace, {"color": trace["marker"]["color"]})["color"]
        bars = self.axes.barh if is_flat else self.axes.bar
        bars(at, _numbers(sizes), width, begin, color=colour, edgecolor="white", linewidth=0.2)
        if names:
            self.axes.set_yticks(at, names)
            self.axes.set_ylim(-0.6, len(names) - 0.4)

    def _heat_map(self, trace: Plot) -> None:
        cells = np.array(self.figure.cells[trace["cells"]], np.float64)
        shares = "colorscale" in trace
        look: Plot = {"cmap": STATES, "vmin": -0.5, "vmax": len(State) - 0.5, "rasterized": True}
        if shares:
            look |= {"cmap": trace["colorscale"].lower(), "vmin": trace["zmin"], "vmax": trace["zmax"]}
        x, y = (_edges(_numbers(trace[key])) for key in "xy")
        mesh = self.axes.pcolormesh(x, y, cells, **look)
        self.axes.grid(visible=False)
        if shares:
            figure: Any = self.axes.figure
            bar = figure.colorbar(mesh, ax=self.axes, location="top", aspect=40, pad=0.02)
            bar.set_label("share that took part, %")


def _set_axis(axes: Axes, which: str, own: Plot, is_titled: bool = True) -> None:
    """Set the title, the ends and the ticks of an axis, `x` or `y`."""
    axis: Any = getattr(axes, f"{which}axis")
    set_ends = getattr(axes, f"set_{which}lim")
    if is_titled:
        axis.set_label_text(plain_text(own["title"]["text"]))
    else:
        axis.set_tick_params(labelbottom=False)
    if is_log := own.get("type") == "log":
        getattr(axes, f"set_{which}scale")("log")
        low, high = getattr(axes.dataLim, f"interval{which}")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    if own.get("side") == "top":
        axis.tick_top()
        axis.set_label_position("top")
        axes.spines["top"].set_visible(True)
        axes.spines["bottom"].set_visible(False)
    if "tickvals" in own:
        texts = own.get("ticktext") or own["tickvals"]
        axis.set_ticks(own["tickvals"], [plain_text(text, MAX_NAME) for text in texts])
    elif "dtick" in own and not is_log:
        axis.set_major_locator(MultipleLocator(own["dtick"]))
    if own.get("showgrid") is False:
        axis.grid(visible=False)
    if "range" in own:
        set_ends(*_numbers(own["range"]))
    elif own.get("rangemode") == "tozero" and not is_log:
        set_ends(0)
    if own.get("autorange") == "reversed":
        axis.set_inverted(True)


def _numbers(values: Sequence[Any]) -> Numbers:
    """Return numbers, NaN for gaps; or the days since 1970 of texts of the calendar."""
    if values and isinstance(values[0], str):
        days: Numbers = date2num(np.array(values, "datetime64[s]"))
        return days
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _edges(centres: Numbers) -> Numbers:
    """Return the ends of cells, in the middle between their centres."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - middle[0], *middle, 2 * centres[-1] - middle[-1]])
