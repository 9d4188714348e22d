"""When fast reboot pays: Ruan et al. 2021, section 5.3 (Table 4 and Figure 5), and a grid around it.

    python experiments/ruan_arrivals.py table4
    python experiments/ruan_arrivals.py table4 --data mnist --shifts 10 50 --seeds 3 --data-dir data
    python experiments/ruan_arrivals.py grid --shifts 50
    python experiments/ruan_arrivals.py figure5 --seeds 3 --data-dir data

A device arrives after round tau_0. The test data are the hold-outs of those in the objective. What is counted
are the rounds until the accuracy is back at its value of round tau_0. Runs are divided among the cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedtide.config import Settings
from fedtide.engine.run import simulate
from fedtide.engine.run_files import records_in
from fedtide.plan import Plan

LAST = 100  # rounds observed after the arrival
COMMON: dict[str, Any] = {
    "strategy": "scheme-c",
    "trace": "pools:first=5",  # in these experiments of the paper, no device is inactive
    "lr-schedule": "staircase",
    "evaluate-on": "objective",
    "engine": "inline",
}
# The paper's devices, batches and rates. It does not state E: 10 steps are ours, and for MNIST an epoch, with
# which the paper's small rate learns.
DATA: dict[str, dict[str, Any]] = {
    "synthetic": {
        "task": "synthetic:alpha=1,beta=1",
        "num-clients": 30,
        "local-steps": 10,
        "batch-size": 20,
        "learning-rate": 1.0,
    },
    "mnist": {
        "task": "mnist",
        "model": "mlp",
        "partition": "label",
        "num-clients": 10,
        "local-epochs": 1,
        "batch-size": 10,
        "learning-rate": 2e-3,
    },
}
MODES = ("on", "off", "auto")
RATES, STEPS, SCHEMES = (0.03, 0.1, 0.3, 1.0), (5, 10, 50), ("scheme-b", "scheme-c")
ARRIVALS = (100, 150, 200)  # of Figure 5


def records_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Run with these settings; returns the records of the rounds, from round 0."""
    _, folder, _ = simulate(Plan.of(Settings.from_mapping(COMMON | values, "experiment")))
    return [*records_in(folder.path)]


def accuracies(values: dict[str, Any]) -> list[float]:
    """Run with these settings; returns the accuracy after each round, from round 0."""
    return [record["accuracy"] for record in records_of(values)]


def run_all(settings: Iterable[dict[str, Any]]) -> list[list[float]]:
    """Run many settings on all cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(accuracies, settings)]


def rounds_to_recover(found: list[float], shift: int, last: int = LAST) -> int:
    """Return the number of rounds until the accuracy is back at its value of round `shift`."""
    after = (t for t in range(shift + 1, len(found)) if found[t] >= found[shift])
    return min(next(after, shift + last + 1) - shift, last + 1)


def arriving(values: dict[str, Any], shift: int, mode: str, seed: int) -> dict[str, Any]:
    """Return the settings of a run in which the last device arrives after round `shift`."""
    told = {"arrivals": f"{values['num-clients'] - 1}={shift + 1}", "num-rounds": shift + LAST, "seed": seed}
    return values | told | {"option": f"reboot={mode}"}


def table4(values: dict[str, Any], shifts: list[int], seeds: range) -> None:
    """Print the rounds to recover by tau_0, with and without fast reboot, and where it decides itself."""
    cells = [*itertools.product(shifts, MODES, seeds)]
    runs = run_all(arriving(values, *cell) for cell in cells)
    found = dict(zip(cells, runs, strict=True))
    print("| tau_0 | fast reboot | vanilla | auto |\n|---|---|---|---|")
    for shift in shifts:
        columns = [spread([rounds_to_recover(found[shift, m, s], shift) for s in seeds]) for m in MODES]
        print(f"| {shift} | {' | '.join(columns)} |")


def grid(values: dict[str, Any], shifts: list[int], seeds: range) -> None:
    """Print the rounds to recover by scheme, rate and E, and for how many seeds which is sooner."""
    cells = [*itertools.product(SCHEMES, RATES, STEPS, shifts, seeds)]
    changed = [
        values | {"strategy": scheme, "learning-rate": rate, "local-steps": steps}
        for scheme, rate, steps, *_ in cells
    ]
    fast, vanilla = (
        run_all(arriving(v, shift, mode, seed) for v, (*_, shift, seed) in zip(changed, cells, strict=True))
        for mode in ("on", "off")
    )
    waits = {
        cell: (rounds_to_recover(a, cell[3]), rounds_to_recover(b, cell[3]))
        for cell, a, b in zip(cells, fast, vanilla, strict=True)
    }
    print("| scheme | rate | E | tau_0 | fast reboot | vanilla | sooner, equal, later |\n" + "|---" * 7 + "|")
    for *names, shift in itertools.product(SCHEMES, RATES, STEPS, shifts):
        pairs = [waits[*names, shift, seed] for seed in seeds]
        order = [sum(a < b for a, b in pairs), sum(a == b for a, b in pairs), sum(a > b for a, b in pairs)]
        columns = [*names, shift, *(spread([*way]) for way in zip(*pairs, strict=True))]
        print(f"| {' | '.join(map(str, columns))} | {', '.join(map(str, order))} |")


def figure5(values: dict[str, Any], seeds: range) -> None:
    """Print for three arrivals the rounds to recover, and the mean accuracy until the next one."""
    arrivals = ",".join(f"{7 + i}={shift + 1}" for i, shift in enumerate(ARRIVALS))
    told = values | {"arrivals": arrivals, "num-rounds": ARRIVALS[-1] + 50}
    cells = [*itertools.product(MODES[:2], seeds)]
    runs = run_all(told | {"option": f"reboot={mode}", "seed": seed} for mode, seed in cells)
    found = dict(zip(cells, runs, strict=True))
    print(
        "| arrival after round | fast reboot | vanilla | mean accuracy %: fast | vanilla |\n"
        + "|---" * 5
        + "|"
    )
    for shift in ARRIVALS:
        waits = [spread([rounds_to_recover(found[m, s], shift, 50) for s in seeds], 50) for m in MODES[:2]]
        means = [
            statistics.mean(statistics.mean(found[m, s][shift + 1 : shift + 51]) for s in seeds)
            for m in MODES[:2]
        ]
        print(f"| {shift} | {' | '.join(waits)} | {' | '.join(f'{100 * mean:.2f}' for mean in means)} |")


def spread(values: list[int], last: int = LAST) -> str:
    """Show the median, and all values."""

    def shown(value: float) -> str:
        return f">{last}" if value > last else f"{value:g}"

    return f"{shown(statistics.median(values))} ({', '.join(map(shown, sorted(values)))})"


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["table4", "grid", "figure5"])
    parser.add_argument("--data", choices=DATA, default="synthetic", help="of table4 and grid")
    parser.add_argument("--shifts", type=int, nargs="+", default=[10, 30, 50, 70], metavar="TAU_0")
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--run-dir", default="runs")
    arguments = parser.parse_args()
    places, seeds = {"data-dir": arguments.data_dir, "run-dir": arguments.run_dir}, range(arguments.seeds)
    if arguments.table == "figure5":
        figure5(DATA["mnist"] | places, seeds)
    else:
        draw = table4 if arguments.table == "table4" else grid
        draw(DATA[arguments.data] | places, arguments.shifts, seeds)


if __name__ == "__main__":
    main()
