"""The command `fedtide runs`: lists run folders, and deletes those of finished runs.

fedtide runs                                      # all runs in runs/
fedtide runs runs/cells                           # those of comparisons
fedtide runs --prune --older-than 30 --keep 10    # asks before it deletes
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedtide.base import dotted
from fedtide.base.display import command
from fedtide.base.errors import SettingsError, why
from fedtide.base.files import open_regular
from fedtide.base.wording import count, new_console
from fedtide.config import Settings
from fedtide.config.settings import NO_DIFFERENCE
from fedtide.engine.read_run import Run, find_runs, read_run
from fedtide.engine.run_folder import lock

PROG = "fedtide runs"
DAY = 86400  # seconds


class Usage(NamedTuple):
    """What a folder takes on the disk: bytes, and the seconds since anything in it was written."""

    size: int
    age: float


def usage_of(folder: Path) -> Usage:
    """Return what a folder takes; links in it are not followed."""
    size, latest = 0, 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            size, latest = size + found.st_size, max(latest, found.st_mtime)
    return Usage(size, max(0.0, time.time() - latest))


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which the runs differ, always including the strategy."""
    varied = []
    for key in Settings().as_mapping():
        values = {str(run.config[key]) for run in runs if key in run.config}  # not in older ones
        if key == "strategy" or (len(values) > 1 and key not in NO_DIFFERENCE):
            varied.append(key)
    return varied


def table_of(runs: Sequence[Run], used: Mapping[Path, Usage]) -> Table:
    """Return a table with a row for each run, in which long texts are broken, so that it fits any width.

    `used` has what each folder takes.
    """
    table, varied = Table(box=SIMPLE, pad_edge=False), differing(runs)
    metrics = dict.fromkeys(run.metric.key for run in runs if run.summary)
    titles = [name.replace("_", " ") for name in metrics]
    settings = ["settings"] if len(varied) > 1 else []
    for name in ("strategy", *titles, "rounds", "", *settings, "MB", "days", "folder"):
        narrow = name in (*titles, "rounds", "MB", "days")
        table.add_column(name, overflow="fold", no_wrap=narrow, min_width=None if name else 12)
    for run in runs:
        final = "" if math.isnan(run.final) else f"{run.final:.4f}"
        finals = [final if name == run.metric.key else "" for name in metrics]
        others = [f"{key} {_shown(run.config.get(key, ''))}" for key in varied if key != "strategy"]
        rounds = str(run.summary.get("rounds", ""))
        shown = [_shown(run.config.get("strategy", "")), *finals, rounds, outcome(run)]
        shown += ["\n".join(others)] if settings else []
        size, age = used[run.path]
        table.add_row(*map(escape, [*shown, f"{size / 1e6:.1f}", f"{age / DAY:.1f}", run.path.name]))
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
    return dotted.shown(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def prunable(runs: Sequence[Run], used: Mapping[Path, Usage], days: float, keep: int) -> list[Run]:
    """Return the finished runs whose folders nobody has written to for so many days.

    The `keep` newest runs are not among them, finished or not. Links are left alone.
    """
    own = (run for run in runs if not run.path.is_symlink())
    by_age = sorted(own, key=lambda run: used[run.path].age)
    return [run for run in by_age[keep:] if run.status == "finished" and used[run.path].age >= days * DAY]


def delete(run: Run) -> None:
    """Delete the folder of a finished run; SettingsError: it has been resumed; OSError: it cannot be."""
    with open_regular(run.path / "metrics.jsonl") as file:
        lock(file, run.path)
        if read_run(run.path).status != "finished":
            raise SettingsError(f"{run.path}: it is not finished any more")
        hidden = run.path.rename(run.path.with_name(f".{run.path.name}"))  # nobody reads half a run
        shutil.rmtree(hidden)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog=PROG, description="List run folders, or delete old ones.")
    parser.add_argument("folder", nargs="?", default="runs", help="folder with the runs (runs)")
    text = "delete finished runs, after a question; the newest run stays"
    parser.add_argument("--prune", action="store_true", help=text)
    text = "those that nobody has written to for so many days"
    parser.add_argument("--older-than", type=float, metavar="DAYS", help=text)
    parser.add_argument("--keep", type=int, metavar="N", help="all but the N newest runs (1)")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args(argv)
    limits = (options.older_than, options.keep)
    if not options.prune and (options.yes or limits != (None, None)):
        parser.error("--older-than, --keep and --yes are for --prune")
    if options.prune and limits == (None, None):
        parser.error("--prune needs --older-than DAYS or --keep N")
    if options.keep is not None and options.keep < 1:
        parser.error(f"--keep is {options.keep}; the newest run always stays")
    if options.older_than is not None and not options.older_than >= 0:
        parser.error(f"--older-than is {options.older_than:g}; give a number of days")
    return options


@command(PROG)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    options = parse(argv)
    folder = Path(options.folder)
    runs = find_runs(folder)
    used = {run.path: usage_of(run.path) for run in runs}
    if options.prune:
        runs = prunable(runs, used, options.older_than or 0, options.keep or 1)
    none = "nothing to delete" if options.prune else "no runs"
    others = f"; the runs of comparisons are in {folder / 'cells'}" if (folder / "cells").is_dir() else ""
    new_console().print(table_of(runs, used) if runs else f"{none} in {folder}{others}", highlight=False)
    return _prune(runs, used, options.yes) if options.prune and runs else 0


def _prune(runs: Sequence[Run], used: Mapping[Path, Usage], sure: bool) -> int:
    megabytes = sum(used[run.path].size for run in runs) / 1e6
    these = f"{count(len(runs), 'run folder')}, {megabytes:.1f} MB"
    if not sure and not _answers_yes(f"delete {these}? [y/N] "):
        print("nothing was deleted")
        return 1
    kept = []
    for run in runs:
        try:
            delete(run)
        except SettingsError as error:
            kept.append(str(error))
        except OSError as error:
            kept.append(f"{error.filename or run.path}: {why(error)}")
    print(f"deleted {len(runs) - len(kept)} of {these}" if kept else f"deleted {these}")
    for line in kept:
        print(f"{PROG}: error: {line}", file=sys.stderr)
    return 1 if kept else 0


def _answers_yes(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:  # nobody is there to answer
        print()
        return False


if __name__ == "__main__":
    sys.exit(main())
