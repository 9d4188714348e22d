"""The bare loop: PyTorch and nothing else, one client after the other in one process."""

from __future__ import annotations

import torch

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Trainer


def run(job: Job, clock: Clock) -> None:
    """Average the local weights of K random clients, round after round."""
    trainer = Trainer(job)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    while not clock.enough:
        sums = {name: torch.zeros_like(value) for name, value in weights.items()}
        total = 0
        for client in torch.randperm(job["num_clients"])[: job["clients_per_round"]].tolist():
            trainer.model.load_state_dict(weights)
            examples = trainer.train(client)
            total += examples
            for name, value in trainer.model.state_dict().items():
                sums[name].add_(value, alpha=examples)
        weights = {name: value / total for name, value in sums.items()}
        clock.tick()
