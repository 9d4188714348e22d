"""What a tuned comparison of methods over settings says: its table, and how its numbers are counted.

    python experiments/best_rates.py runs/compare-TUNED

The table has a row for each method and a column for each trace, with the scores of all tasks in percent:
those of the first task, a slash, those of the second. Below it: by how many points each method is behind the
best one in its worst setting, also if all have the same rate, and, after a search with --tune-seeds 2, how
much a rate for each method in each setting gains on one rate for each task. That is read from the trials:
both rates are chosen on one seed of the search and judged on another, so that neither is judged where it was
chosen. `--csv FILE` has all numbers. `--beside FILE` compares the order of the methods in each setting with
that in such a file: Kendall's rank correlation, over the methods of both.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from scipy.stats import kendalltau

import fedtide
from benchmarks.measure import table
from fedtide.comparison.results import Row
from fedtide.engine.read_run import read_run

BOUND = "sequential-sgd"  # has all data in one place, so that no method is compared to it


class Pair(NamedTuple):
    """A method in a setting."""

    task: str
    trace: str
    strategy: str


Trials = dict[Pair, dict[float, dict[int, float]]]
"""Scores by pair, learning rate and seed."""


def rows_of(folder: Path) -> dict[Pair, Row]:
    """Return the rows of a comparison of which nothing varies but task, trace, strategy and seed."""
    found = fedtide.load(folder)
    if not isinstance(found, fedtide.Comparison):
        raise ValueError(f"{folder} is not the folder of a comparison")
    settings = ((row.runs[0].cell.settings, row) for row in found.rows)
    return {Pair(s.task, s.trace, s.strategy): row for s, row in settings}


def scores(rows: dict[Pair, Row]) -> list[list[str]]:
    """Return the rows of the table, with the headings first."""
    tasks, traces, strategies = (list(dict.fromkeys(pair[i] for pair in rows)) for i in range(3))
    lines = [["", *traces]]
    for strategy in strategies:
        cells = [[rows.get(Pair(task, trace, strategy)) for task in tasks] for trace in traces]
        lines.append(
            [strategy, *("/".join(f"{100 * r.score.mean:.0f}" if r else "" for r in c) for c in cells)]
        )
    return lines


def behind(scores: Mapping[Pair, float]) -> str:
    """Return by how many points each method is behind the best at most, the least first."""
    best: dict[tuple[str, str], float] = defaultdict(float)
    for pair, score in scores.items():
        if pair.strategy != BOUND:
            best[pair[:2]] = max(best[pair[:2]], score)
    worst: dict[str, float] = defaultdict(float)
    for pair, score in scores.items():
        worst[pair.strategy] = max(worst[pair.strategy], 100 * (best[pair[:2]] - score))
    found = sorted((points, strategy) for strategy, points in worst.items() if strategy != BOUND)
    return ", ".join(f"{strategy} {points:.1f}" for points, strategy in found)


def trials_of(folder: Path) -> Trials:
    """Return the scores of the trials of a search for the learning rate: of each pair, by rate and seed."""
    found: Trials = defaultdict(lambda: defaultdict(dict))
    for path in (folder / "tuning" / "cells").iterdir():
        run = read_run(path)
        s = run.settings
        found[Pair(s.task, s.trace, s.strategy)][s.learning_rate][s.seed] = run.score()
    return found


def common_rates(trials: Trials, seeds: Sequence[int]) -> dict[str, float]:
    """Return the rate of each task with the best mean over all methods and settings on some seeds."""
    means: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for pair, by_rate in trials.items():
        for rate, scores in by_rate.items():
            means[pair.task][rate].append(fmean(scores[seed] for seed in seeds))
    return {task: max(sorted(of), key=lambda rate: fmean(of[rate])) for task, of in means.items()}


def with_one_rate(trials: Trials, seeds: Sequence[int]) -> dict[Pair, float]:
    """Return the mean scores of the trials at the common rate of each task."""
    rates = common_rates(trials, seeds)
    return {pair: fmean(by_rate[rates[pair.task]].values()) for pair, by_rate in trials.items()}


def gains(trials: Trials, seeds: Sequence[int]) -> dict[Pair, float]:
    """Return the points that each pair gains if it has a rate of its own, not the common one."""
    gained: dict[Pair, list[float]] = defaultdict(list)
    for chosen_on, judged_on in zip(seeds, [*seeds[1:], seeds[0]], strict=True):
        common = common_rates(trials, [chosen_on])
        for pair, scores in trials.items():
            own = max(sorted(scores), key=lambda rate: scores[rate][chosen_on])
            gained[pair].append(100 * (scores[own][judged_on] - scores[common[pair.task]][judged_on]))
    return {pair: fmean(points) for pair, points in gained.items()}


def write(file: Path, tuned: dict[Pair, Row]) -> None:
    """Write all numbers, a line for each method in a setting."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow([*Pair._fields, "accuracy", "deviation", "rate"])
        for pair, row in tuned.items():
            (rate,) = row.tuned.values()
            out.writerow(
                [*pair, f"{100 * row.score.mean:.2f}", f"{100 * row.score.deviation:.1f}", f"{rate:g}"]
            )


def correlations(tuned: dict[Pair, Row], file: Path) -> list[str]:
    """Return a line for each setting that is also in a file of `write`, other than of a bound."""
    with file.open(encoding="utf-8", newline="") as stream:
        known = {Pair(*line[:3]): float(line[3]) for line in list(csv.reader(stream))[1:]}
    pairs = [pair for pair in tuned if pair in known and pair.strategy != BOUND]
    lines = []
    for task, trace in dict.fromkeys(pair[:2] for pair in pairs):
        both = [(tuned[p].score.mean, known[p]) for p in pairs if p[:2] == (task, trace)]
        lines.append(f"{task}, {trace}: {kendalltau(*zip(*both, strict=True)).statistic:.2f}")
    return lines


def main() -> None:
    """Read the folders, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("tuned", type=Path, help="folder of the tuned comparison")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all numbers to this file")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="compare the methods' order with a CSV")
    arguments = parser.parse_args()
    try:
        tuned, trials = rows_of(arguments.tuned), trials_of(arguments.tuned)
        seeds = sorted({seed for by_rate in trials.values() for of in by_rate.values() for seed in of})
    except ValueError as error:
        parser.error(str(error))
    headings, *lines = scores(tuned)
    print(table(headings, lines))
    print("\nPoints behind the best method in the worst setting:")
    print(behind({pair: row.score.mean for pair, row in tuned.items()}))
    print("\nThe same of the trials, with one rate for all methods of a task:")
    print(behind(with_one_rate(trials, seeds)))
    if len(seeds) > 1:
        found = gains(trials, seeds)
        more, less = (sum(sign * gain > 1 for gain in found.values()) for sign in (1, -1))
        print(
            f"\nOf {len(found)} pairs of a method and a setting, a rate of their own gains "
            f"{fmean(found.values()):.1f} points on average; {more} gain more than a point, {less} lose more."
        )
    if arguments.beside:
        print("\nThe order of the methods beside that of the file, by Kendall's correlation:")
        print("\n".join(correlations(tuned, arguments.beside)))
    if arguments.csv:
        write(arguments.csv, tuned)


if __name__ == "__main__":
    main()
