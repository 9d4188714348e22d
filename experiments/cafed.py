"""Clients that disagree about labels, and are there in correlated rounds: a task and a trace of our own.

    python sim.py --config experiments/cafed-mnist.toml
    python experiments/cafed.py runs/compare-FOLDER          # the columns of their table

Rodio et al. 2023, "Federated Learning under Heterogeneous and Correlated Client Availability", as in their
program, arodio/CA-Fed. The common test set has the labels of nobody: test on what clients hold out.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedtide.tasks import TASKS, FederatedData, PartitionedData
from fedtide.tasks.partition import PartitionFn
from fedtide.tasks.sizes import SizesFn
from traces import RoundAvailability
from traces.base import SeededTrace, complete_if_online
from traces.patterns.markov import Chains


@dataclass(frozen=True)
class Swapped:
    """A task whose clients are divided at random into groups; each group swaps some pairs of labels."""

    task: str
    groups: int
    pairs: int
    data_dir: str
    default_partition: str = "iid"
    default_model: str = "logistic"

    def federate(
        self, num_clients: int, partition: PartitionFn | None, sizes: SizesFn, holdout: float, seed: int
    ) -> FederatedData:
        """Divide the data as the task does, then swap labels of training and held-out examples."""
        source = TASKS[self.task](data_dir=self.data_dir)
        data = source.federate(num_clients, partition, sizes, holdout, seed)
        if not isinstance(data, PartitionedData):
            raise ValueError(f"{self.task} is no data set that is divided among clients")
        rng = np.random.default_rng([seed, *b"swapped"])
        inputs, labels = data.train[0], data.train[1].copy()
        for group in np.array_split(rng.permutation(num_clients), self.groups):
            first, second = rng.choice(data.num_outputs, size=(2, self.pairs), replace=False)
            renamed = np.arange(data.num_outputs)
            renamed[first], renamed[second] = second, first
            for client in group.tolist():
                rows = data.order[data.offsets[client] : data.offsets[client + 1]]
                labels[rows] = renamed[labels[rows]]
        return replace(data, train=(inputs, labels))


def mnist(*, groups: int = 2, pairs: int = 2, data_dir: str = "data") -> Swapped:
    """MNIST, of which each group of clients swaps some pairs of labels; tested on what clients hold out."""
    return Swapped("mnist", groups, pairs, data_dir)


class Correlated(SeededTrace):
    """Half of the clients are mostly there, half mostly not, and of these half in long spells.

    Each client is a Markov chain with two states, 1/2 + `gap` or 1/2 - `gap` of the rounds online. The rounds
    of a quarter of all clients, drawn from those that are mostly away, are correlated by `memory`.
    """

    def __init__(self, num_clients: int, seed: int, *, gap: float = 0.4, memory: float = 0.9) -> None:
        super().__init__(num_clients, seed)
        kinds = self.rng("cafed-kinds", 0).permutation(np.arange(num_clients) % 4)
        self.share = np.where(kinds < 2, 0.5 + gap, 0.5 - gap).astype(np.float32)
        self.memory = np.where(kinds == 3, memory, 0).astype(np.float32)
        self._chains = Chains(self._draws, self.share, self.memory)

    def availability(self, t: int) -> RoundAvailability:
        """Return the availability in round t."""
        return complete_if_online(self._chains.online(t))

    def participation(self, t: int) -> np.ndarray:
        """Return the share of the rounds in which each client is online."""
        return self.share.astype(np.float64)

    def _draws(self, t: int) -> np.ndarray:
        return self.rng("cafed", t).random(self.num_clients, np.float32)


def main() -> None:
    """Print each method's highest accuracy, mean over all rounds, and deviation in the second half."""
    from benchmarks.measure import table  # not where the task and the trace are used
    from fedtide.engine.run_files import records_in

    (folder,) = map(Path, sys.argv[1:])
    runs: dict[str, list[list[float]]] = {}
    for cell in json.loads((folder / "cells.json").read_text(encoding="utf-8")):
        records = [record for record in records_in(Path(cell["folder"])) if record["round"]]
        accuracy = 100 * np.array([record["accuracy"] for record in records if "accuracy" in record])
        late = accuracy[len(accuracy) // 2 :]
        runs.setdefault(cell["strategy"], []).append([accuracy.max(), accuracy.mean(), late.std()])
    rows = [[name, *(f"{value:.2f}" for value in np.mean(of, axis=0))] for name, of in runs.items()]
    print(table(["strategy", "maximum", "time average", "deviation"], rows))


if __name__ == "__main__":
    main()
