"""One poisoned board among four and among ten: what the limit on norms and robust strategies do about it.

    python experiments/poisoned.py                # prints Markdown; 2 minutes on two cores
    python experiments/poisoned.py --seeds 1 --rounds 5

Client 0 of scikit-learn's digits has either inputs in the wrong unit, 10,000 times too large, as a broken
sensor has, or all labels one class off. The others share the digits equally. The test set is clean.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import fedtide
from benchmarks.measure import table
from fedtide.tasks import digits
from fedtide.tasks.arrays import Task

FLOWERS = "flwr.server.strategy"
METHODS: dict[str, dict[str, Any]] = {
    "`fedavg`": {"strategy": "fedavg"},
    "`fedavg`, `max-update-norm=auto`": {"strategy": "fedavg", "max_update_norm": "auto"},
    "Flower's `FedMedian`": {"strategy": f"{FLOWERS}.FedMedian"},
    "Flower's `FedTrimmedAvg:beta=0.25`": {"strategy": f"{FLOWERS}.FedTrimmedAvg:beta=0.25"},
    "Flower's `Krum:num-malicious-clients=1`": {"strategy": f"{FLOWERS}.Krum:num-malicious-clients=1"},
}
POISONS = ("none", "unit", "labels")


def poisoned(poison: str, boards: int) -> Task:
    """Return digits with the examples of client 0 poisoned."""
    data = digits().dataset()
    (x, y), owners = data.train, np.arange(len(data.train[1])) % boards
    x, y = x.copy(), y.copy()
    if poison == "unit":
        x[owners == 0] *= 1e4
    elif poison == "labels":
        y[owners == 0] = (y[owners == 0] + 1) % data.num_outputs
    return Task.from_arrays(x, y, clients=owners, test=data.test)


EARLY = 5  # rounds


def accuracies(method: str, poison: str, boards: int, seeds: int, rounds: int, run_dir: str) -> list[float]:
    """Return the accuracies after `EARLY` rounds and after the last one, means over the seeds."""
    found = []
    for seed in range(seeds):
        run = fedtide.run(
            **METHODS[method],
            task=poisoned(poison, boards),
            model="logistic",
            num_clients=boards,
            num_rounds=rounds,
            trace="always",
            learning_rate=0.1,
            seed=seed,
            engine="inline",
            client_gpus=0.0,
            report="none",
            progress=False,
            run_dir=run_dir,
        )
        found.append([run.metrics.accuracy[EARLY], run.accuracy])
    return [fmean(own) for own in zip(*found, strict=True)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--boards", type=int, nargs="+", default=[4, 10])
    parser.add_argument("--run-dir", default="runs/poisoned")
    options = parser.parse_args()
    kinds = [(poison, boards) for boards in options.boards for poison in POISONS]
    names = {"none": "clean", "unit": "one in the wrong unit", "labels": "one with wrong labels"}
    header = [
        f"accuracy % after {EARLY}, {options.rounds} rounds",
        *(f"{boards} boards, {names[poison]}" for poison, boards in kinds),
    ]
    rows = []
    for method in METHODS:
        cells = [accuracies(method, *kind, options.seeds, options.rounds, options.run_dir) for kind in kinds]
        rows.append([method, *(", ".join(f"{100 * value:.1f}" for value in cell) for cell in cells)])
    print(table(header, rows))


if __name__ == "__main__":
    main()
