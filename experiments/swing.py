"""How far a training loss swings in the end: a row for each method, a column for each trace.

    python experiments/swing.py runs/compare-FOLDER --rounds 400
    python experiments/swing.py runs/compare-FOLDER --across learning-rate --down strategy amplify

Each entry is the last training loss, and in brackets the least and the largest one of the last rounds, which
should be two periods of the availability; means over seeds. Prints Markdown; needs runs with `train-loss`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import table
from flexfl.engine.run_folder import records_in


def swing(folder: Path, rounds: int) -> list[float]:
    """Return the last training loss of a run, and the least and the largest one of its last rounds.

    Raises
    ------
    ValueError
        The run has no training loss.
    """
    losses = {r["round"]: r["train_loss"] for r in records_in(folder) if "train_loss" in r}
    if not losses:
        raise ValueError(f"{folder} has no training loss: set train-loss = true")
    latest = [loss for number, loss in losses.items() if number > max(losses) - rounds]
    if None in latest:  # it has diverged
        return [math.nan] * 3
    return [latest[-1], min(latest), max(latest)]


def entry(runs: list[list[float]]) -> str:
    """Return what a cell of the table says of all its seeds."""
    if not runs:
        return "-"
    last, least, largest = (fmean(values) for values in zip(*runs, strict=True))
    return "diverged" if math.isnan(last) else f"{last:.3f} ({least:.3f} to {largest:.3f})"


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    parser.add_argument("--rounds", type=int, default=400, help="the last rounds (default: 400)")
    parser.add_argument("--across", default="trace", help="(default: trace)")
    parser.add_argument("--down", nargs="+", default=["strategy"], help="(default: strategy)")
    arguments = parser.parse_args()
    runs: dict[tuple[str, ...], dict[str, list[list[float]]]] = {}
    try:
        cells = json.loads((arguments.folder / "cells.json").read_text(encoding="utf-8"))
        for cell in cells:
            row = runs.setdefault(tuple(str(cell.get(key, "")) for key in arguments.down), {})
            column = row.setdefault(str(cell.get(arguments.across, "")), [])
            column.append(swing(Path(cell["folder"]), arguments.rounds))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    columns = list(dict.fromkeys(column for row in runs.values() for column in row))
    rows = [[*names, *(entry(row.get(column, [])) for column in columns)] for names, row in runs.items()]
    print(table([*arguments.down, *columns], rows))


if __name__ == "__main__":
    main()
