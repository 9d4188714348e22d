"""Lists run folders: what sets them apart, and how they ended.

python -m flexfl.runs                 # all runs in runs/
python -m flexfl.runs runs/cells      # those of comparisons
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flexfl.config import Settings
from flexfl.config.settings import EXECUTION_ONLY, MAX_BYTES
from flexfl.ground.files import parse_json, parse_toml, read_text

# What says nothing about a run's result.
UNINTERESTING = EXECUTION_ONLY - {"engine"} | {"cohort"}
SETTINGS = [field.name.replace("_", "-") for field in fields(Settings)]


class Run(NamedTuple):
    """A run folder: its configuration, and its summary, empty if the run did not end."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def ended(self) -> str:
        """How it ended."""
        if not self.summary:
            return "not finished"
        if "failed" in self.summary:
            return f"failed after round {self.summary['rounds']}"
        return (
            f"interrupted in round {self.summary.get('rounds')}"
            if self.summary.get("interrupted")
            else "finished"
        )

    @property
    def metric(self) -> str:
        """What its task reports."""
        told = self.summary.get("metric")
        return str(told.get("name", "accuracy")) if isinstance(told, dict) else "accuracy"

    @property
    def final(self) -> str:
        """The metric's final value."""
        told = self.summary.get("final")
        value = told.get(self.metric) if isinstance(told, dict) else None
        return f"{value:.4f}" if isinstance(value, int | float) else ""


def find_runs(folder: Path) -> list[Run]:
    """Return the runs in a folder, in the order of their names; what cannot be read is none."""
    found = []
    for path in sorted(folder.iterdir()):
        try:
            config = parse_toml(read_text(path / "config.toml", MAX_BYTES))
        except (OSError, ValueError):
            continue
        try:
            summary = parse_json(read_text(path / "summary.json", MAX_BYTES))
        except (OSError, ValueError):
            summary = {}
        found.append(Run(path, config, summary if isinstance(summary, dict) else {}))
    return found


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ, and always the strategy."""
    varied = []
    for key in SETTINGS:
        values = {str(run.config[key]) for run in runs if key in run.config}  # not in older ones
        if key == "strategy" or (len(values) > 1 and key not in UNINTERESTING):
            varied.append(key)
    return varied


def table_of(runs: Sequence[Run]) -> Table:
    """Return a table with a line for each run."""
    table, varied = Table(box=SIMPLE, pad_edge=False), differing(runs)
    metrics = dict.fromkeys(run.metric for run in runs if run.summary)
    titles = [name.replace("_", " ") for name in metrics]
    for name in (*varied, "rounds", *titles, "", "folder"):
        table.add_column(name, overflow="fold", no_wrap=name in varied)
    for run in runs:
        settings = [_shown(run.config.get(key, "")) for key in varied]
        rounds = str(run.summary.get("rounds", ""))
        finals = [run.final if name == run.metric else "" for name in metrics]
        table.add_row(*map(escape, [*settings, rounds, *finals, run.ended, run.path.name]))
    return table


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flexfl.runs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", default="runs", help="where the runs lie (default: runs)")
    folder = Path(parser.parse_args(argv).folder)
    if not folder.is_dir():
        print(f"{parser.prog}: error: there is no folder {folder}", file=sys.stderr)
        return 2
    runs = find_runs(folder)
    Console().print(table_of(runs) if runs else f"no runs in {folder}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
