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
from fedtide.engine.run_files import read_config, records_in

Runs = dict[tuple[str, ...], dict[str, list[Path]]]
"""Folders of runs that differ in their seeds, by row and column."""


def runs_of(comparison: Path, across: list[str], down: list[str]) -> Runs:
    """Return the folders of a comparison's runs, by the settings `down` and the settings `across`.

    Raises
    ------
    OSError, ValueError
        It is not the folder of a comparison.
    """
    runs: Runs = {}
    for cell in json.loads((comparison / "cells.json").read_text(encoding="utf-8")):
        folder = Path(cell["folder"])
        settings = read_config(folder) | cell
        if missing := [key for key in (*down, *across) if key not in settings]:
            raise ValueError(f"{folder} has no setting {missing[0]!r}")
        row = runs.setdefault(tuple(str(settings[key]) for key in down), {})
        row.setdefault(", ".join(str(settings[key]) for key in across), []).append(folder)
    return runs


def curve(folder: Path, key: str) -> dict[int, float]:
    """Return a number of a run by round, NaN where it has diverged.

    Raises
    ------
    ValueError
        The run has no such number.
    """
    found = {r["round"]: math.nan if r[key] is None else r[key] for r in records_in(folder) if key in r}
    if not found:
        hint = ": set train-loss = true" if key == "train_loss" else ""
        raise ValueError(f"{folder} has no {key}{hint}")
    return found


def swing(folder: Path, rounds: int) -> list[float]:
    """Return the last training loss of a run, and the least and the largest one of its last rounds."""
    losses = curve(folder, "train_loss")
    latest = [loss for number, loss in losses.items() if number > max(losses) - rounds]
    if any(map(math.isnan, latest)):
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
    parser.add_argument("--across", nargs="+", default=["trace"], help="(default: trace)")
    parser.add_argument("--down", nargs="+", default=["strategy"], help="(default: strategy)")
    arguments = parser.parse_args()
    try:
        runs = runs_of(arguments.folder, arguments.across, arguments.down)
        found = {
            names: {
                column: [swing(folder, arguments.rounds) for folder in folders]
                for column, folders in row.items()
            }
            for names, row in runs.items()
        }
    except (OSError, ValueError) as error:
        parser.error(str(error))
    columns = list(dict.fromkeys(column for row in runs.values() for column in row))
    rows = [[*names, *(entry(row.get(column, [])) for column in columns)] for names, row in found.items()]
    print(table([*arguments.down, *columns], rows))


if __name__ == "__main__":
    main()
