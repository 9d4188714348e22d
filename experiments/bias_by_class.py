"""Which classes' clients have shaped a model, in the whole run and of late, under each participation.

    python experiments/bias_by_class.py experiments/five-participations-digits.toml --write bias-by-class.png
    python experiments/bias_by_class.py FILE.toml --strategies fedavg fedvarp --rounds 10

Every client must have one class only. A class's share of the updates is that of everything that was applied
to the weights (fedtide/engine/update_shares.py), in the whole run or in its last rounds only. The table
has how far the shares are from those of the data, in percent: the total variation distance, of the whole run
/ of the last rounds. 0: every class counts as much as it has data; near 100: only classes count that have
hardly any. Seed 0. Methods without clients are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import table
from fedtide.base.specs import parse
from fedtide.config import Settings
from fedtide.config.grid import cells
from fedtide.engine.update_shares import applied_updates, as_shares
from fedtide.plan import Plan

DRAWN = ("fedavg", "fedau", "f3ast", "mimic", "fedlaavg", "fedvarp")


class Shares(NamedTuple):
    """Shares of each class, which sum to 1: of the data, of all updates, and of those of the last rounds."""

    data: NDArray[np.float64]
    whole: NDArray[np.float64]
    late: NDArray[np.float64]


def shares_of(settings: Settings, rounds: int) -> Shares:
    """Play a run, and compare it with how it was `rounds` rounds before its end.

    Raises
    ------
    ValueError
        A client has more than one class.
    """
    plan = Plan.of(settings)
    data, trace = plan.data, plan.trace
    labels = [np.unique(data.train_set(np.array([client]))[1]) for client in range(settings.num_clients)]
    if any(len(found) != 1 for found in labels):
        raise ValueError(f"partition {settings.partition} gives a client several classes; take label")
    groups = np.concatenate(labels).astype(np.intp)
    last = settings.num_rounds
    before, whole = applied_updates(plan, data.sizes, trace, groups, [max(0, last - rounds), last])
    return Shares(*map(as_shares, (np.bincount(groups, data.sizes), whole, whole - before)))


def distance(shares: NDArray[np.float64], data: NDArray[np.float64]) -> float:
    """Return the total variation distance, in percent."""
    return float(50 * np.abs(shares - data).sum())


def draw(found: dict[tuple[str, str], Shares], traces: Sequence[str], rounds: int, file: Path) -> None:
    """Draw the shares of some methods: a row for each method, a column for each participation."""
    from matplotlib import pyplot

    played = list(dict.fromkeys(method for method, _ in found))
    methods = [name for name in DRAWN if name in played] or played[: len(DRAWN)]
    size = (2.3 * len(traces), 1.35 * len(methods))
    figure, axes = pyplot.subplots(len(methods), len(traces), figsize=size, sharex=True, squeeze=False)
    for row, method in zip(axes, methods, strict=True):
        row[0].set_ylabel(method, fontsize=9)
        for axis, trace in zip(row, traces, strict=True):
            data, whole, late = found[method, trace]
            classes = np.arange(len(data))
            axis.bar(classes, 100 * whole, color="tab:blue", alpha=0.6)
            axis.step(classes, 100 * late, where="mid", color="tab:orange")
            axis.step(classes, 100 * data, where="mid", color="black", linewidth=0.8)
            axis.tick_params(labelsize=7)
    for axis, trace in zip(axes[0], traces, strict=True):
        axis.set_title(trace, fontsize=8)
    figure.supxlabel("class", fontsize=9)
    names = ["share of the updates of the whole run, %", f"of the last {rounds} rounds", "share of the data"]
    drawn = [*axes[0, 0].containers, *axes[0, 0].lines]
    figure.legend(drawn, names, loc="upper right", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("file", type=Path, help="an experiment")
    parser.add_argument("--strategies", nargs="+", help="(default: all of the file)")
    parser.add_argument("--rounds", type=int, default=10, help="how many are the last ones (default: 10)")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--write", type=Path, metavar="FILE.png", help="where to draw the picture")
    arguments = parser.parse_args()
    values = tomllib.loads(arguments.file.read_text(encoding="utf-8"))
    values |= {"seed": 0, "data-dir": arguments.data_dir}
    values |= {"strategy": arguments.strategies} if arguments.strategies else {}
    runs = [cell.settings for cell in cells(values, str(arguments.file))]
    runs = [run for run in runs if parse("strategy", run.strategy).name != "sequential-sgd"]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        shares = pool.map(shares_of, runs, [arguments.rounds] * len(runs))
        try:
            found = {(run.strategy, run.trace): each for run, each in zip(runs, shares, strict=True)}
        except ValueError as error:
            parser.error(str(error))
    methods, traces = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    rows = [
        [
            method,
            *(
                " / ".join(f"{distance(part, each.data):.0f}" for part in each[1:])
                for each in (found[method, trace] for trace in traces)
            ),
        ]
        for method in methods
    ]
    print(table(["strategy", *traces], rows))
    if arguments.write:
        draw(found, traces, arguments.rounds, arguments.write)


if __name__ == "__main__":
    main()
