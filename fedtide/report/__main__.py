"""Makes the reports of runs: one page that works without a network, or its figures as files.

fedtide report runs/20260101-120000-scheme-c-digits   # again, into its folder
fedtide report runs/compare-... runs/2026...          # of several together
fedtide report runs/compare-... --figures paper --format pdf,png --x time
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from fedtide.base.display import command
from fedtide.base.errors import SettingsError
from fedtide.engine.read_run import consistent
from fedtide.report import figures
from fedtide.report.make import FILE, page_of
from fedtide.report.page import write_page
from fedtide.report.subject import read_subject

PROG = "fedtide report"
ALONE = (("output", "link"), ("format", "x", "columns", "width", "legend", "style"))
"""Flags of the page alone, and of figures."""


@command(PROG)
def main(argv: Sequence[str] | None = None) -> None:
    """Write the page, or figures in its place."""
    parser = argparse.ArgumentParser(prog=PROG, description=(__doc__ or "").splitlines()[0])
    text = "folder of a run or of a comparison"
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help=text)
    text = f"where to write the page (default: {FILE} in the folder; of several, beside the first one)"
    parser.add_argument("--output", type=Path, metavar="FILE.html", help=text)
    text = "share Plotly with other pages, in a file beside the (first) folder"
    parser.add_argument("--link", action="store_true", help=text)
    text = "what the others are compared to, such as strategy=fedavg (default: as in the comparison)"
    parser.add_argument("--baseline", default="", metavar="KEY=VALUE,...", help=text)
    text = "import the parts outside of fedtide that the folders name, to compute what they do not have"
    parser.add_argument("--trust", action="store_true", help=text)
    _add_figures(parser)
    arguments = parser.parse_args(argv)
    place = arguments.output or _place(arguments.folders)
    given = [
        name for name in ALONE[not arguments.figures] if vars(arguments)[name] != parser.get_default(name)
    ]
    if given:
        whose = "the page, and --figures makes none" if arguments.figures else "figures: add --figures DIR"
        raise SettingsError(f"--{given[0]} is for {whose}")
    if arguments.figures:
        formats, look = _look(arguments)
    with consistent(arguments.folders):
        subject = read_subject(arguments.folders, arguments.trust, arguments.baseline)
        contents = page_of(subject, arguments.folders)
    if arguments.figures:
        x = arguments.x or subject.main_axis
        written = figures.write_figures(contents.figures, arguments.figures, formats, x, look)
        print(f"{arguments.figures}: {', '.join(file.name for file in written)}")
        return
    beside = arguments.folders[0].absolute().parent
    print(write_page(contents, place, beside if arguments.link else None))


def _add_figures(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("figures for print, in place of the page")
    text = "draw each panel of the page as a file in this folder (needs matplotlib)"
    group.add_argument("--figures", type=Path, metavar="DIR", help=text)
    text = f"of {', '.join(figures.FORMATS)} one or more, separated by commas (default: pdf)"
    group.add_argument("--format", default="pdf", metavar="FORMAT,...", help=text)
    text = "the horizontal axis (default: rounds, or time where asynchronous methods are among others)"
    group.add_argument("--x", choices=[*figures.AXES], help=text)
    text = "one or two columns of a paper wide, 3.4 or 7 inches (default: 1)"
    group.add_argument("--columns", type=int, choices=[*figures.WIDTHS], default=1, help=text)
    group.add_argument("--width", type=float, metavar="INCHES", help="another width")
    text = "above the axes, inside them, or none (default: outside)"
    group.add_argument("--legend", choices=("outside", "inside", "none"), default="outside", help=text)
    text = "a style file of matplotlib, which counts for more than ours"
    group.add_argument("--style", default="", metavar="FILE", help=text)


def _look(arguments: argparse.Namespace) -> tuple[list[str], figures.Print]:
    """Return the formats and the look of figures; SettingsError: one of the flags is not allowed."""
    figures.require_matplotlib()
    formats = list(dict.fromkeys(arguments.format.split(",")))
    if unknown := [name for name in formats if name not in figures.FORMATS]:
        raise SettingsError(f"format is {unknown[0]!r}; it must be of {', '.join(figures.FORMATS)}")
    width = figures.WIDTHS[arguments.columns] if arguments.width is None else arguments.width
    if not figures.MIN_WIDTH <= width <= figures.MAX_WIDTH:
        raise SettingsError(
            f"width is {width:g} inches; it must be from {figures.MIN_WIDTH} to {figures.MAX_WIDTH}"
        )
    return formats, figures.Print(width, arguments.legend, arguments.style)


def _place(folders: Sequence[Path]) -> Path:
    """Return a name that follows from the folders, so that no page of others is overwritten."""
    if len(folders) == 1:
        return folders[0] / FILE
    names = "\n".join(sorted(str(folder.resolve()) for folder in folders))
    return folders[0].parent / f"report-{hashlib.sha256(names.encode()).hexdigest()[:10]}.html"


if __name__ == "__main__":
    sys.exit(main())
