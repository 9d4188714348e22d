"""How large steps may be where a method applies old updates: FedLaAvg's participation on the simplest loss.

    python experiments/stability.py runs/compare-FOLDER --across trace task

Replays who took part in each round of a comparison's runs, where every client has the loss h x^2 / 2. With
the gain a = learning rate x local steps x h, to first order,

    x <- x - a x mean over clients of the x that a client last trained from.

Prints, for each run, the mean and the largest age of an update in rounds, and the least gain with which x
grows: pi^2 / (2 T) where each client takes part every T rounds, the same share of them in each.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import table
from experiments.swing import runs_of
from fedtide.engine.run_files import records_in

GAINS = np.geomspace(0.01, 10, 301)


class Stability(NamedTuple):
    """Ages of updates in rounds, and the least gain that diverges; infinite if none does."""

    mean_age: float
    largest_age: int
    limit: float


def stability(active: list[NDArray[np.intp]], gains: NDArray[np.float64] = GAINS) -> Stability:
    """Replay the participants of each round.

    Parameters
    ----------
    active
        The clients whose updates counted, by round; a client that is in none does not exist.
    gains
        Which are tried, shape (G,), ascending.
    """
    clients, where = np.unique(np.concatenate(active), return_inverse=True)
    rounds = np.split(where, np.cumsum([len(found) for found in active])[:-1])
    x, memory = np.ones(len(gains)), np.zeros((len(clients), len(gains)))
    latest, ages = np.zeros(len(clients), np.intp), np.zeros((len(active), 2))
    path = np.zeros((len(active), len(gains)))
    for number, present in enumerate(rounds, start=1):
        memory[present], latest[present] = x, number
        x = np.clip(x - gains * memory.mean(0), -1e100, 1e100)
        path[number - 1], ages[number - 1] = np.abs(x), ((number - latest).mean(), (number - latest).max())
    early, late = (part.max(0) for part in np.array_split(path, 2)[:2])
    grows = late > early
    settled = ages[len(ages) // 2 :]  # when all have taken part
    return Stability(settled[:, 0].mean(), int(settled[:, 1].max()), min(gains[grows], default=np.inf))


def main() -> None:
    """Print a row for each kind of participation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="a comparison's folder in run-dir")
    parser.add_argument("--across", nargs="+", default=["trace"], help="of the rows (default: trace)")
    parser.add_argument("--strategy", default="fedlaavg", help="whose runs (default: fedlaavg)")
    arguments = parser.parse_args()
    try:
        found = runs_of(arguments.folder, arguments.across, ["strategy"]).get((arguments.strategy,), {})
        if not found:
            raise ValueError(f"{arguments.folder} has no run of {arguments.strategy}")
        rows = []
        for name, (folder, *_) in found.items():
            active = [np.array(r["active"], np.intp) for r in records_in(folder) if r["round"]]
            mean, largest, limit = stability(active)
            rows.append([name, f"{mean:.1f}", largest, f"{limit:.2g}"])
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(table(["participation", "mean age", "largest", "diverges from gain"], rows))


if __name__ == "__main__":
    main()
