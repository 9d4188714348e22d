"""Lists run folders: the settings in which they differ, and how they ended.

python -m fedtide.runs                 # all runs in runs/
python -m fedtide.runs runs/cells      # those of comparisons
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedtide.base.display import exit_code
from fedtide.base.wording import new_console
from fedtide.config import Settings
from fedtide.config.settings import EXECUTION_ONLY
from fedtide.engine.read_run import Run, find_runs

UNINTERESTING = EXECUTION_ONLY - {"engine"} | {"cohort"}  # settings that do not affect a run's result


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ, always including the strategy."""
    varied = []
    for key in Settings().as_mapping():
        values = {str(run.config[key]) for run in runs if key in run.config}  # not in older ones
        if key == "strategy" or (len(values) > 1 and key not in UNINTERESTING):
            varied.append(key)
    return varied


def table_of(runs: Sequence[Run]) -> Table:
    """Return a table with a row for each run, in which long texts are broken, so that it fits any width."""
    table, varied = Table(box=SIMPLE, pad_edge=False), differing(runs)
    metrics = dict.fromkeys(run.metric.key for run in runs if run.summary)
    titles = [name.replace("_", " ") for name in metrics]
    settings = ["settings"] if len(varied) > 1 else []
    for name in ("strategy", *titles, "rounds", "", *settings, "folder"):
        table.add_column(name, overflow="fold", no_wrap=name in (*titles, "rounds"))
    for run in runs:
        final = "" if math.isnan(run.final) else f"{run.final:.4f}"
        finals = [final if name == run.metric.key else "" for name in metrics]
        others = [f"{key} {_shown(run.config.get(key, ''))}" for key in varied if key != "strategy"]
        rounds = str(run.summary.get("rounds", ""))
        shown = [_shown(run.config.get("strategy", "")), *finals, rounds, outcome(run)]
        table.add_row(*map(escape, [*shown, *(["\n".join(others)] if settings else []), run.path.name]))
    return table


def outcome(run: Run) -> str:
    """Describe in a few words how a run ended."""
    rounds = run.summary.get("rounds")
    if run.status == "failed":
        return f"failed after round {rounds}"
    if run.status == "interrupted":
        return f"interrupted in round {rounds}"
    if run.status == "unfinished":
        return "not finished"
    by = str(run.summary.get("stopped", "")).partition(":")[0]
    return f"finished ({by})" if by else "finished"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fedtide.runs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", default="runs", help="folder with the runs (default: runs)")
    folder = Path(parser.parse_args(argv).folder)

    def show() -> None:
        runs = find_runs(folder)
        new_console().print(table_of(runs) if runs else f"no runs in {folder}", highlight=False)

    return exit_code(parser.prog, show)


if __name__ == "__main__":
    sys.exit(main())
