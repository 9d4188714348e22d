"""Draw the curves of a comparison: a panel for each trace, a line for each method.

    python experiments/curves.py runs/compare-FOLDER --write curves.png
    python experiments/curves.py runs/compare-FOLDER --write curves.png --value accuracy --across task trace

A line is the mean over seeds, the band around it goes from the least to the largest. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.swing import Runs, curve, runs_of

WIDTH, HEIGHT = 3.4, 2.7  # of a panel, in inches
PANELS_IN_A_ROW = 3


def band(folders: list[Path], key: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the rounds that all runs have, and the least, the mean and the largest number there.

    Raises
    ------
    ValueError
        A run has no such number.
    """
    curves = [curve(folder, key) for folder in folders]
    rounds = sorted(set.intersection(*map(set, curves)))
    values = np.array([[found[number] for number in rounds] for found in curves])
    return np.array(rounds, np.intp), np.array([values.min(0), values.mean(0), values.max(0)])


def draw(runs: Runs, key: str, label: str, top: float | None, file: Path) -> None:
    """Draw the panels, and one legend for all.

    Raises
    ------
    ValueError
        A run has no such number.
    """
    from matplotlib import pyplot

    panels = list(dict.fromkeys(column for row in runs.values() for column in row))
    columns = min(len(panels), PANELS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, sharey=True, squeeze=False, layout="constrained")
    figure.set_size_inches(WIDTH * columns, HEIGHT * rows + 0.4)
    for axis in grid.flat[len(panels) :]:
        axis.set_axis_off()
    lines = {}
    for axis, panel in zip(grid.flat, panels, strict=False):
        axis.set_title(panel.replace(", ", "\n"), fontsize=7)  # one setting a line
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.set_ylim(top=top)
        for number, (names, row) in enumerate(runs.items()):
            if panel in row:
                rounds, (least, mean, largest) = band(row[panel], key)
                colour = f"C{number}"
                (lines[" ".join(names)],) = axis.plot(rounds, mean, color=colour, linewidth=1)
                if len(row[panel]) > 1:
                    axis.fill_between(rounds, least, largest, color=colour, alpha=0.2, linewidth=0)
    figure.supxlabel("round", fontsize=8)
    figure.supylabel(label, fontsize=8)
    figure.legend(
        lines.values(), lines.keys(), loc="outside upper center", ncols=min(5, 2 * columns), fontsize=7
    )
    figure.savefig(file, dpi=100)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE.png", help="where to draw")
    parser.add_argument(
        "--value", default="train_loss", help="a number of metrics.jsonl (default: train_loss)"
    )
    parser.add_argument("--across", nargs="+", default=["trace"], help="of the panels (default: trace)")
    parser.add_argument(
        "--down", nargs="+", default=["strategy"], help="settings of the lines (default: strategy)"
    )
    parser.add_argument("--lines", nargs="+", help="values of the first of these; others are left out")
    parser.add_argument("--top", type=float, help="the largest number that is shown")
    arguments = parser.parse_args()
    try:
        runs = runs_of(arguments.folder, arguments.across, arguments.down)
        chosen = {names: row for names, row in runs.items() if names[0] in (arguments.lines or [names[0]])}
        if not chosen:
            raise ValueError(f"no {arguments.down[0]} of these; there are: {', '.join(n[0] for n in runs)}")
        draw(chosen, arguments.value, arguments.value.replace("_", " "), arguments.top, arguments.write)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
