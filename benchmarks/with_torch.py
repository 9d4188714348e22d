"""A plain PyTorch loop: one client after the other, in one process."""

from __future__ import annotations

import multiprocessing
import os

import torch

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Trainer


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round; with `busy`, also on all other cores.

    Cores share caches and memory: a core is faster while the others are idle.
    """
    others = []
    if job["api"] == "busy":
        spawn = multiprocessing.get_context("spawn")
        count = (os.cpu_count() or 1) - 1
        others = [spawn.Process(target=_keep_busy, args=(job,), daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    loop = Loop(job)
    while not clock.enough:
        loop.round()
        clock.tick()
    if not all(other.is_alive() for other in others):
        raise RuntimeError("a process on another core has ended")


class Loop:
    """Rounds of federated averaging."""

    def __init__(self, job: Job) -> None:
        self.job, self.trainer = job, Trainer(job)
        self.weights = {name: value.clone() for name, value in self.trainer.model.state_dict().items()}

    def round(self) -> None:
        """Train K random clients and average their weights."""
        model, total = self.trainer.model, 0
        sums = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        for client in torch.randperm(self.job["num_clients"])[: self.job["clients_per_round"]].tolist():
            model.load_state_dict(self.weights)
            examples = self.trainer.train(client)
            total += examples
            for name, value in model.state_dict().items():
                sums[name].add_(value, alpha=examples)
        self.weights = {name: value / total for name, value in sums.items()}


def _keep_busy(job: Job) -> None:
    loop = Loop(job)
    while True:
        loop.round()
