"""What a tuned comparison of methods over settings says: its table, and how its numbers are counted.

    python experiments/best_rates.py runs/compare-TUNED --one-rate runs/compare-A runs/compare-B

The table has a row for each method and a column for each trace, with the scores of all tasks in percent:
those of the first task, a slash, those of the second. Below it: by how many points each method is behind the
best one in its worst setting, and, of the pairs of a method and a setting that `--one-rate` has too, how much
tuning gains with the same seeds. `--csv FILE` has all numbers.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedtide
from benchmarks.measure import table
from fedtide.comparison.results import Row, paired

BOUND = "sequential-sgd"  # has all data in one place, so that no method is compared to it


class Pair(NamedTuple):
    """A method in a setting."""

    task: str
    trace: str
    strategy: str


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


def behind(rows: dict[Pair, Row]) -> list[tuple[float, str]]:
    """Return by how many points each method is behind the best at most, the least first."""
    best: dict[tuple[str, str], float] = defaultdict(float)
    for pair, row in rows.items():
        if pair.strategy != BOUND:
            best[pair[:2]] = max(best[pair[:2]], row.score.mean)
    worst: dict[str, float] = defaultdict(float)
    for pair, row in rows.items():
        worst[pair.strategy] = max(worst[pair.strategy], 100 * (best[pair[:2]] - row.score.mean))
    return sorted((points, strategy) for strategy, points in worst.items() if strategy != BOUND)


def gains(tuned: dict[Pair, Row], one_rate: dict[Pair, Row]) -> dict[Pair, float]:
    """Return the points that tuning gains, over the seeds that both have."""
    both = [pair for pair in tuned if pair in one_rate]
    return {pair: 100 * paired(tuned[pair].scores, one_rate[pair].scores).mean for pair in both}


def write(file: Path, tuned: dict[Pair, Row], one_rate: dict[Pair, Row]) -> None:
    """Write all numbers, a line for each method in a setting."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        headings = ("tuned", "tuned_deviation", "tuned_rate", "one_rate", "one_rate_deviation")
        out.writerow([*Pair._fields, *headings])
        for pair, row in tuned.items():
            other, (rate,) = one_rate.get(pair), row.tuned.values()
            numbers = [f"{100 * row.score.mean:.2f}", f"{100 * row.score.deviation:.1f}", f"{rate:g}"]
            if other:
                numbers += [f"{100 * other.score.mean:.2f}", f"{100 * other.score.deviation:.1f}"]
            out.writerow([*pair, *numbers])


def main() -> None:
    """Read the folders, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("tuned", type=Path, help="folder of the tuned comparison")
    parser.add_argument(
        "--one-rate", type=Path, nargs="*", default=[], help="folders of comparisons at one rate"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all numbers to this file")
    arguments = parser.parse_args()
    try:
        tuned = rows_of(arguments.tuned)
        one_rate = {pair: row for folder in arguments.one_rate for pair, row in rows_of(folder).items()}
    except ValueError as error:
        parser.error(str(error))
    headings, *lines = scores(tuned)
    print(table(headings, lines))
    print("\nPoints behind the best method in the worst setting:")
    print(", ".join(f"{strategy} {points:.1f}" for points, strategy in behind(tuned)))
    if found := gains(tuned, one_rate):
        more, less = (sum(sign * gain > 1 for gain in found.values()) for sign in (1, -1))
        print(
            f"\nOf {len(found)} pairs of a method and a setting, tuning gains {fmean(found.values()):.1f} "
            f"points on average; {more} gain more than a point, {less} lose more than one."
        )
    if arguments.csv:
        write(arguments.csv, tuned, one_rate)


if __name__ == "__main__":
    main()
