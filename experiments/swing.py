"""How far a training loss swings in the end: a row for each method, a column for each trace.

    python experiments/swing.py runs/compare-FOLDER --rounds 400

Each entry is the last training loss, and in brackets the least and the largest one of the last rounds, which
should be two periods of the availability. Prints Markdown; needs runs with `train-loss`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import table
from flexfl.engine.run_folder import records_in


def swing(folder: Path, rounds: int) -> str:
    """Return the entry of one run.

    Raises
    ------
    ValueError
        The run has no training loss.
    """
    losses = {r["round"]: r["train_loss"] for r in records_in(folder) if "train_loss" in r}
    if not losses:
        raise ValueError(f"{folder} has no training loss: set train-loss = true")
    latest = [loss for number, loss in losses.items() if number > max(losses) - rounds]
    if None in latest:
        return "diverged"
    return f"{latest[-1]:.3f} ({min(latest):.3f} to {max(latest):.3f})"


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    parser.add_argument("--rounds", type=int, default=400, help="the last rounds (default: 400)")
    arguments = parser.parse_args()
    try:
        cells = json.loads((arguments.folder / "cells.json").read_text(encoding="utf-8"))
        rows: dict[str, list[str]] = {}
        for cell in cells:
            rows.setdefault(cell["strategy"], []).append(swing(Path(cell["folder"]), arguments.rounds))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    traces = list(dict.fromkeys(cell["trace"] for cell in cells))
    print(table(["strategy", *traces], [[name, *entries] for name, entries in rows.items()]))


if __name__ == "__main__":
    main()
