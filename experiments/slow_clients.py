"""What asynchronous training costs the slow: whose updates count, and whose data are predicted well.

    python experiments/slow_clients.py runs/compare-FOLDER...
    python experiments/slow_clients.py runs/compare-FOLDER --slowest 0.2

Clients are ordered by the mean seconds of their tasks, in all runs of the comparisons that have the same
participation and seed. Each entry has the share of everything that was applied to the weights that came from
the slowest tenth and from the slower half (fedtide/engine/update_shares.py), and then the accuracy on the
training examples of the slowest tenth and of all clients; in percent, means over seeds. Without bias, the
first two numbers are the shares of the data. Prints Markdown; needs runs in event time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import table
from fedtide.config import Settings
from fedtide.engine.compute_numbers import numbers_of_run
from fedtide.engine.read_run import read_run
from fedtide.report.event_time import Outcome, tasks_of

Conditions = tuple[str, ...]
"""The settings on which the speeds of the clients depend."""


@dataclass(frozen=True)
class Played:
    """A run: its settings, and of each client the seconds of its tasks, its share and its accuracy, (N,)."""

    settings: Settings
    seconds: NDArray[np.float64]  # of all its tasks that have ended
    tasks: NDArray[np.int64]
    shares: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def conditions(self) -> Conditions:
        """Where clients are as fast as in this run."""
        one = self.settings
        return (one.task, one.trace, str(one.num_clients), str(one.local_steps), str(one.seed))


def played(folder: Path) -> Played:
    """Read a run, and compute the shares of the updates if its folder does not have them yet.

    Raises
    ------
    ValueError
        It is no finished run in event time, or its shares cannot be computed.
    """
    run = read_run(folder, records=True)
    numbers = numbers_of_run(run, compute=True)
    if isinstance(numbers, str):
        raise ValueError(f"{folder}: {numbers}")
    count = run.settings.num_clients
    found = tasks_of(run.records, run.settings.clients_per_round or count)
    if found is None:
        raise ValueError(f"{folder}: rounds have a fixed length; take runs with round-ends")
    if len(numbers.clients) < count or not numbers.update_shares:
        raise ValueError(f"{folder}: {' '.join(numbers.notes) or 'the shares of the updates are not known'}")
    ended = found.outcomes != Outcome.OPEN
    clients = found.clients[ended]
    seconds = np.bincount(clients, found.seconds[ended], minlength=count)
    scores = [np.nan if score is None else score for score in numbers.scores]
    shares = np.array(numbers.update_shares, np.float64)
    return Played(run.settings, seconds, np.bincount(clients, minlength=count), shares, np.array(scores))


def slowest_first(runs: list[Played]) -> NDArray[np.intp]:
    """Return the clients of some runs by the mean seconds of their tasks, those that ended none first."""
    seconds, tasks = sum(run.seconds for run in runs), sum(run.tasks for run in runs)
    mean = np.full(len(runs[0].seconds), np.inf)
    np.divide(seconds, tasks, out=mean, where=np.asarray(tasks) > 0)
    return np.argsort(-mean, kind="stable")


def numbers(run: Played, order: NDArray[np.intp], share: float) -> list[float]:
    """Return the shares of the slowest and of the slower half, and the accuracy of the slowest and of all."""
    few, half = order[: max(1, round(share * len(order)))], order[: len(order) // 2]
    found = (run.shares[few].sum(), run.shares[half].sum(), run.accuracy[few].mean(), run.accuracy.mean())
    return [100 * float(number) for number in found]


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, nargs="+", help="comparisons' folders in run-dir")
    parser.add_argument("--slowest", type=float, default=0.1, help="share of the clients (default: 0.1)")
    arguments = parser.parse_args()
    try:
        files = [(folder / "cells.json").read_text(encoding="utf-8") for folder in arguments.folder]
        folders = dict.fromkeys(cell["folder"] for text in files for cell in json.loads(text))
        runs = [played(Path(folder)) for folder in folders]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    alike: dict[Conditions, list[Played]] = defaultdict(list)
    for run in runs:
        alike[run.conditions].append(run)
    order = {conditions: slowest_first(group) for conditions, group in alike.items()}
    rows: dict[str, dict[tuple[str, str], list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        name = f"{run.settings.strategy}, B = {run.settings.round_ends}"
        column = run.settings.task, run.settings.trace
        rows[name][column].append(numbers(run, order[run.conditions], arguments.slowest))
    columns = sorted({column for row in rows.values() for column in row})
    shown = [
        [name, *(entry(row[column]) if column in row else "-" for column in columns)]
        for name, row in rows.items()
    ]
    print(table(["strategy", *(f"{task}, {trace}" for task, trace in columns)], shown))


def entry(seeds: list[list[float]]) -> str:
    """Return what a cell of the table says."""
    few, half, slow, everybody = np.mean(seeds, axis=0)
    return f"{few:.1f}, {half:.0f}; {slow:.0f}, {everybody:.0f}"


if __name__ == "__main__":
    main()
