"""Perplexity of roles and of tweets, by method, model and trace, each at its best learning rate.

    python experiments/language_table.py runs/compare-...

Means over the last two fifths of the rounds, of 100 a period of day and night; the best rate has the lowest
perplexity over all test blocks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedtide
from benchmarks.measure import table

SHARE = 0.4
COLUMNS = ("perplexity", "groups.group.role.perplexity", "groups.group.tweets.perplexity")


class Found(NamedTuple):
    """A run's perplexities: of all test blocks, of roles and of tweets; and its learning rate."""

    whole: float
    roles: float
    tweets: float
    rate: float


def found(run: fedtide.Run) -> Found:
    """Return what a run has reached."""
    rounds = run.metrics[run.metrics.index > (1 - SHARE) * run.metrics.index[-1]]
    whole, roles, tweets = (float(rounds[column].dropna().mean()) for column in COLUMNS)
    return Found(whole, roles, tweets, run.settings.learning_rate)


def main() -> None:
    """Read the comparison, and print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="+", help="of comparisons")
    best: dict[tuple[str, str, str], Found] = {}
    for folder in parser.parse_args().folder:
        for run in (member.run for row in fedtide.load(folder).rows for member in row.runs):
            key = (run.settings.model, run.settings.strategy, run.settings.trace)
            best[key] = min(best.get(key, found(run)), found(run))
    models, strategies, traces = (list(dict.fromkeys(key[i] for key in best)) for i in range(3))
    for model in models:
        lines = [
            [strategy, *(shown(best.get((model, strategy, trace))) for trace in traces)]
            for strategy in strategies
        ]
        print(f"\n{model}: roles/tweets (all; rate)\n\n{table(['', *traces], lines)}")


def shown(cell: Found | None) -> str:
    """Return a cell of the table."""
    return f"{cell.roles:.0f}/{cell.tweets:.0f} ({cell.whole:.0f}; {cell.rate:g})" if cell else ""


if __name__ == "__main__":
    main()
