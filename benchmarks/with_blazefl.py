"""BlazeFL's own FedAvg, with one process (shared memory) or one thread per core; it needs Python 3.12."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from blazefl.contrib import fedavg
from blazefl.core import IPCMode
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, build_model


@cache
def shards(directory: str) -> Shards:
    """Return the clients' examples, opened once per process."""
    return Shards(directory)


class Models:
    """Builds the workload's model."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def select_model(self, name: str) -> nn.Module:
        """Build the model; called where it trains."""
        torch.set_num_threads(1)
        return build_model(self.job)


class Data:
    """The clients' examples; an epoch is the local steps of a round."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> DataLoader[Any]:
        """Return the batches of a client's local steps, in reshuffled passes over its data."""
        examples = TensorDataset(*shards(self.job["shards"]).client(cid))
        sampler = RandomSampler(
            examples, num_samples=self.job["local_steps"] * batch_size, generator=generator
        )
        return DataLoader(examples, batch_size, sampler=sampler)

    def set_dataset(self, type_: str, cid: int, dataset: object) -> None:
        """Keep nothing: training does not change the examples."""


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round; `api`: "threads" or processes."""
    count, scratch = job["num_clients"], Path(job["scratch"])
    models, data, work = Models(job), Data(job), (1, job["batch_size"], job["learning_rate"], 0)
    share = job["clients_per_round"] / count
    server = fedavg.FedAvgBaseServerHandler(
        models, job["model"], data, 10**9, count, share, "cpu", job["batch_size"], 0
    )
    cores = os.cpu_count() or 1
    if job["api"] == "threads":
        trainer = fedavg.FedAvgThreadPoolClientTrainer(models, job["model"], data, "cpu", count, *work, cores)
    else:
        folders = scratch / "share", scratch / "state"
        memory = IPCMode.SHARED_MEMORY
        trainer = fedavg.FedAvgProcessPoolClientTrainer(
            models, job["model"], *folders, data, "cpu", count, *work, cores, memory
        )
    trainer.progress_fn = lambda jobs: jobs
    while not clock.enough:
        trainer.local_process(server.downlink_package(), server.sample_clients())
        updated = [server.load(package) for package in trainer.uplink_package()]
        if not updated[-1] or len(updated) != job["clients_per_round"]:
            raise RuntimeError(f"{len(updated)} replies, not {job['clients_per_round']}")
        clock.tick()
