"""The figures of a page as files for a paper: each panel that the page shows, over one horizontal axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fedtide.base.errors import SettingsError, why
from fedtide.engine.run_folder import slug
from fedtide.report.curves import VALUES
from fedtide.report.plots import Figure, Plot, Toggle, panels_of

AXES = {"rounds": ("rounds",), "uploads": ("uploads",), "bytes": ("megabytes",), "time": ("seconds", "time")}
"""Horizontal axes, and the options that toggles have for them."""
FIRST_ONLY = ("Clients by", "Colour", "Part")  # toggles whose other options show the same in another way
APART = ("curves", "bias")  # figures whose panels are figures of their own
FORMATS = ("pdf", "svg", "png")
WIDTHS = {1: 3.4, 2: 7.0}  # inches of one and of two columns
MIN_WIDTH, MAX_WIDTH = 1.5, 20  # inches


class Print(NamedTuple):
    """How figures are printed: the width in inches, where the legend is, and a style file of matplotlib."""

    width: float = WIDTHS[1]
    legend: Literal["outside", "inside", "none"] = "outside"
    style: str = ""


class Drawing(NamedTuple):
    """What a file shows: views by their titles, and those of their panels."""

    name: str  # of the file, without its ending
    figure: Figure
    views: Mapping[str, Plot]
    panels: Sequence[str]

    @property
    def value(self) -> str:
        """The key of what its first panel shows; empty if it is no curve."""
        return str(panels_of(next(iter(self.views.values())))[self.panels[0]].get("value", ""))


def write_figures(
    figures: Sequence[Figure], folder: Path, formats: Sequence[str], x: str, look: Print
) -> list[Path]:
    """Write the panels of figures to a folder in each of the formats; return the files.

    `x` is the horizontal axis of those that have several, a key of `AXES`. SettingsError: matplotlib is not
    installed, there is no such axis or style file, or the folder cannot be written.
    """
    require_matplotlib()
    from fedtide.report.printing import write

    wanted: dict[str, Drawing] = {}
    for drawing in drawings(figures, x):  # long names may begin alike
        same = sum(name.partition("+")[0] == drawing.name for name in wanted)
        name = f"{drawing.name}+{same}" if same else drawing.name
        wanted[name] = drawing._replace(name=name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return write(wanted.values(), folder, formats, look)
    except OSError as error:
        raise SettingsError(f"figures {error.filename or folder}: {why(error)}") from None


def require_matplotlib() -> None:
    """Raise SettingsError, which says what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise SettingsError("figures need matplotlib: pip install matplotlib") from None


def drawings(figures: Sequence[Figure], x: str) -> Iterator[Drawing]:
    """Yield what to draw: each panel, and curves of all settings side by side before those of each."""
    for figure in figures:
        found: dict[str, dict[tuple[str, ...], Drawing]] = {}
        chosen = [_options(toggle, figure, x) for toggle in figure.choices]
        for keys in itertools.product(*chosen):
            view, names = figure.views["|".join(keys)], _names(figure, chosen, keys)
            for part, panels in _parts(figure, view):
                name = slug([figure.name, part, *names], 100) if part else slug([figure.name, *names], 100)
                found.setdefault(part, {})[names] = Drawing(name, figure, {"": view}, panels)
        for part, several in found.items():
            if figure.name == "curves" and len(several) > 1:
                views = {" · ".join(names): own.views[""] for names, own in several.items()}
                panels = next(iter(several.values())).panels
                yield Drawing(slug([figure.name, part], 100), figure, views, panels)
            yield from several.values()


def _parts(figure: Figure, view: Plot) -> list[tuple[str, Sequence[str]]]:
    """Return the names and the panels of what is drawn apart."""
    panels = panels_of(view)
    if figure.name not in APART:
        return [("", [*panels])]
    titles = {panel: own.get("value", own["title"]["text"]) for panel, own in panels.items()}
    return [(title.partition(",")[0].replace("<br>", " "), [panel]) for panel, title in titles.items()]


def _options(toggle: Toggle, figure: Figure, x: str) -> list[str]:
    """Return the options of a toggle whose views are drawn."""
    if "rounds" in toggle.options:  # it is the horizontal axis
        found = [key for key in AXES[x] if key in toggle.options]
        if not found and figure.name == "curves":
            there = [name for name, keys in AXES.items() if {*keys} & {*toggle.options}]
            raise SettingsError(f"x is {x}, which these runs do not have; they have {', '.join(there)}")
        return found or ["rounds"]
    return [*toggle.options][: 1 if toggle.name in FIRST_ONLY else None]


def _names(figure: Figure, chosen: Sequence[Sequence[str]], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the options that tell a view from the others; of several runs, the first one's."""
    toggles = zip(figure.choices, chosen, keys, strict=True)
    telling = [(toggle, key) for toggle, of, key in toggles if len(of) > 1 and toggle.name != VALUES]
    return tuple(toggle.options[key].partition(", ")[0] for toggle, key in telling)
