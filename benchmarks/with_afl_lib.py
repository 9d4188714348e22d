"""AFL-Lib's own FedBuff and FedAvg, from a checkout of https://github.com/boyi-liu/AFL-Lib.

Its servers and clients are used as they are, which train a client when it is given its task; our model and
examples take the place of its files. Its clients do whole passes over their data, with momentum: a pass over
as many examples as our local steps see. It has no packages, so that its modules are found by their folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace

import torch
from torch.utils.data import TensorDataset

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, build_model


def run(job: Job, clock: Clock) -> None:
    """Take the replies of clients at work, one at a time; the job's `replies` change the model together.

    Without `replies`, average the local weights of K random clients, round after round.
    """
    name = "fedbuff" if "replies" in job else "fedavg"
    torch.set_num_threads(1)
    os.chdir(job["checkout"])  # it reads utils/sys.yaml at every task
    sys.path.insert(0, job["checkout"])
    from alg import base  # type: ignore[import-not-found]

    method, runs = importlib.import_module(f"alg.{name}"), job.get("replies", 1)

    shards = Shards(job["shards"])

    def examples(dataset: str, client: int, is_train: bool) -> TensorDataset:
        """Return what a client sees in a task; nothing is evaluated."""
        return shards.one_pass(client, job)

    base.read_client_data, base.load_model = examples, lambda arguments: build_model(job)
    count = job["num_clients"]
    arguments = Namespace(
        alg=name,
        dataset="",
        device="cpu",
        total_num=count,
        sr=(job["clients_per_round"] + 0.5) / count,  # it rounds N times this down
        rnd=0,
        bs=job["batch_size"],
        epoch=1,
        lr=job["learning_rate"],
        gamma=1.0,
        decay=1.0,
        etag=1.0,
        k=runs,
    )
    server = method.Server(0, arguments, [method.Client(client, arguments) for client in range(count)])
    while not clock.enough:
        for _ in range(runs):
            server.run()
        clock.tick()
