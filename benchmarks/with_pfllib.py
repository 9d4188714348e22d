"""PFLlib's own FedAvg, from a checkout of https://github.com/TsingZ0/PFLlib; it needs h5py, too.

Its server and clients are used as they are; our model and examples take the place of its files. It sends the
weights to all clients, also those that are not chosen. Clients do whole passes over their data: one over as
many examples as our local steps see.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, build_model


class Settings(Namespace):
    """PFLlib's settings; those that are not given are off."""

    def __getattr__(self, name: str) -> int:
        return 0


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(job["checkout"], "system")))
    from flcore.clients import clientbase  # type: ignore[import-not-found]
    from flcore.servers import serveravg, serverbase  # type: ignore[import-not-found]

    shards, count = Shards(job["shards"]), job["num_clients"]

    def examples(dataset: str, client: int, is_train: bool, few_shot: int) -> TensorDataset:
        """Return what a client sees in a round."""
        return shards.one_pass(client, job)

    clientbase.read_client_data = serverbase.read_client_data = examples

    class Rounds(serveravg.FedAvg):  # type: ignore[misc]
        """Records the end of each round, and evaluates nothing."""

        def evaluate(self, *arguments: Any) -> None: ...

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            clock.tick()
            if clock.enough:
                raise StopIteration  # no round left to time

    settings = Settings(
        model=build_model(job),
        device="cpu",
        num_clients=count,
        join_ratio=(job["clients_per_round"] + 0.5) / count,  # it rounds N times this down
        local_epochs=1,
        batch_size=job["batch_size"],
        local_learning_rate=job["learning_rate"],
        global_rounds=10**9,
        eval_gap=1,
        time_threthold=float("inf"),
    )
    with contextlib.suppress(StopIteration):
        Rounds(settings, 0).train()
