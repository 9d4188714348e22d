"""Figures as files in print style: their sizes, fonts and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cycler import Cycler, cycler
from matplotlib import rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.style import context, library

from fedtide.base.errors import SettingsError, why
from fedtide.base.files import replacing
from fedtide.engine.client_states import State
from fedtide.report.drawing import DASHED, MAX_NAME, draw, in_lines, look_of, plain_text
from fedtide.report.figures import Drawing, Print
from fedtide.report.participation import COLOURS
from fedtide.report.plots import DASHES, MAX_LINES, SERIES, panels_of

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LEAST_WIDTH = 1.7  # inches of views side by side
HANDLE, CHARACTER, FIRST_LINE, FURTHER_LINE = 0.42, 0.047, 0.147, 0.186  # inches, of an entry of a legend
TICK_LINE = 0.135  # likewise, of a name at an axis
UNDATED: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}


def _looks() -> Cycler:
    """Return the looks of lines, in the order of `plots.line`; no two are alike, even without colours."""
    rows = [(i % len(SERIES), i // len(SERIES)) for i in range(MAX_LINES)]
    dashes = [DASHED[DASHES[(i + again) % len(DASHES)]] for i, again in rows]
    markers = [MARKERS[i] for i, _ in rows]
    return cycler(color=[SERIES[i] for i, _ in rows]) + cycler(linestyle=dashes) + cycler(marker=markers)


STYLE: dict[str, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],  # both come with matplotlib; the first is like Times
    "mathtext.fontset": "stix",
    **{"font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8},
    **{"xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7},
    **{"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.markersize": 3},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.xmargin": 0.02},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.5},
    **{"legend.frameon": False, "legend.handlelength": 2.4, "legend.columnspacing": 1.2},
    **{"figure.constrained_layout.h_pad": 0.03, "figure.constrained_layout.w_pad": 0.03},
    **{"pdf.fonttype": 42, "svg.hashsalt": "fedtide", "savefig.dpi": 300},  # TrueType fonts are embedded
    "axes.prop_cycle": _looks(),
}
"""A style of matplotlib."""


def write(drawings: Iterable[Drawing], folder: Path, formats: Sequence[str], look: Print) -> list[Path]:
    """Write drawings in some formats.

    SettingsError: the style cannot be read or used, as one that needs LaTeX; OSError: they cannot be written.
    """
    files = []
    with context([STYLE, _style(look.style)]):
        for drawing in drawings:
            try:
                made = compose(drawing, look)
                made.draw_without_rendering()
                made.set_layout_engine("none")  # it takes as long as to draw: once for all formats
                for kind in formats:
                    files.append(folder / f"{drawing.name}.{kind}")
                    with replacing(files[-1]) as temporary:
                        made.savefig(temporary, format=kind, metadata=UNDATED[kind])
            except RuntimeError as error:
                if not look.style:
                    raise
                raise SettingsError(f"style {look.style}: {str(error).splitlines()[0]}") from None
    return files


def _style(named: str) -> dict[str, Any]:
    """Return the settings of a style file, or of a style that matplotlib has under this name."""
    if not named or named in library:
        return dict(library.get(named, {}))
    try:
        return dict(rc_params_from_file(named, fail_on_error=True, use_default_template=False))
    except OSError as error:
        raise SettingsError(f"style {named}: {why(error)}") from None
    except ValueError as error:
        raise SettingsError(f"style {named}: {error}") from None


def compose(drawing: Drawing, look: Print) -> MatplotlibFigure:
    """Return the views of a drawing side by side, with one legend for all."""
    across = min(len(drawing.views), max(1, round(look.width / LEAST_WIDTH)))
    down = -(-len(drawing.views) // across)
    handles = [] if look.legend == "none" else handles_of(drawing, look.width)
    columns, height_of_legend = _legend_size(handles, look)
    height = down * _height(drawing, look.width / across) + height_of_legend
    made = MatplotlibFigure((look.width, height), layout="constrained")
    grid = made.add_gridspec(down, across)
    upper: list[Axes] = []
    for i, (title, view) in enumerate(drawing.views.items()):
        ends = [panels_of(view)[panel].get("domain", [0, 1]) for panel in drawing.panels]
        ratios = [high - low for low, high in ends]
        cells = grid[i // across, i % across].subgridspec(len(ratios), 1, height_ratios=ratios)
        first = made.add_subplot(cells[0], sharey=upper[0] if upper else None)
        below = [made.add_subplot(cells[row], sharex=first) for row in range(1, len(ratios))]
        draw(drawing.figure, view, dict(zip(drawing.panels, [first, *below], strict=True)))
        first.set_title(in_lines(title.replace(" · ", "\n"), int(look.width / across / CHARACTER)))
        if i + across < len(drawing.views):
            first.xaxis.label.set_visible(False)
        if i % across:
            first.yaxis.set_tick_params(labelleft=False)
            first.yaxis.label.set_visible(False)
        upper.append(first)
    if handles and look.legend == "inside":
        upper[0].legend(handles=handles)
    elif handles:
        made.legend(handles=handles, loc="outside upper center", ncols=columns)
    return made


def handles_of(drawing: Drawing, width: float) -> list[Line2D | Patch]:
    """Return the entries of the legend of what is shown; names break at a width in inches."""
    figure, views = drawing.figure, drawing.views.values()
    shown = [trace for view in views for trace in view["data"] if trace.get("yaxis", "y") in drawing.panels]
    groups = {trace.get("legendgroup") for trace in shown}
    maps = {trace["cells"] for trace in shown if "cells" in trace and "colorscale" not in trace}
    states = {value for name in maps for row in figure.cells[name] for value in row}
    colours = {f"state-{state.value}": COLOURS[state][0] for state in State if state in states}
    found: list[Line2D | Patch] = []
    for entry in figure.legend:
        name = in_lines(entry.name, int((width - HANDLE) / CHARACTER))
        colour = colours.get(entry.colour, entry.colour)
        if not (entry.group in groups if entry.group else entry.colour in colours):
            continue
        if entry.is_area:
            found.append(Patch(facecolor=colour, edgecolor="#999999", linewidth=0.4, label=name))
        else:
            found.append(Line2D([], [], linewidth=1.1, label=name, **look_of(figure, entry.group)))
    return found


def _height(drawing: Drawing, width: float) -> float:
    """Return the inches of a view without the legend: figures of many rows are as high as these need."""
    if len(drawing.views) > 1:
        return 0.35 + 0.7 * width
    view = next(iter(drawing.views.values()))
    height: int = view.get("height", drawing.figure.height)
    share = len(drawing.panels) / len(panels_of(view))
    least = max(1.9, 0.006 * share * height) * math.sqrt(max(1.0, width / 3.4))
    names = [name for trace in view["data"] for name in trace.get("y", ()) if isinstance(name, str)]
    lines = [len(plain_text(name, MAX_NAME).splitlines()) for name in dict.fromkeys(names)]
    return max(least, 0.5 + TICK_LINE * len(lines) * max(lines, default=0))


def _legend_size(handles: Sequence[Line2D | Patch], look: Print) -> tuple[int, float]:
    """Return how many columns of entries fit on the width, and the inches of the rows."""
    if look.legend != "outside" or not handles:
        return 1, 0.0
    lines = [str(handle.get_label()).splitlines() for handle in handles]
    longest = max(len(line) for of in lines for line in of)
    columns = max(1, min(len(handles), int(look.width / (HANDLE + CHARACTER * longest))))
    heights = [FIRST_LINE + FURTHER_LINE * (len(of) - 1) for of in lines]
    return columns, max(float(column.sum()) for column in np.array_split(heights, columns))
