"""pfl-research (Apple) in one process, as in its PyTorch tutorials."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import Clock, Job
from benchmarks.workloads import Shards, batches, build_model

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Classifier(nn.Sequential):
    """A model with the methods that pfl requires."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return nothing: there is no evaluation."""
        return {}


class TimedRounds(TrainingProcessCallback):  # type: ignore[misc]
    """Records the end of each round, and stops the training after enough rounds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the end of the round."""
        self.clock.tick()
        return self.clock.enough, Metrics()


def run(job: Job, clock: Clock) -> None:
    """Train by federated averaging."""
    torch.set_num_threads(1)
    shards = Shards(job["shards"])
    batch_size, steps = job["batch_size"], job["local_steps"]

    def draw(user: int) -> Dataset:
        """Return the examples of the user's next local steps, in order."""
        x, y = shards.client(user)
        rows = torch.cat(list(batches(len(y), batch_size, steps)))
        return Dataset([x[rows], y[rows]], user_id=user)

    data = FederatedDataset(draw, get_user_sampler("random", range(job["num_clients"])))
    module = Classifier(*build_model(job).children())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=job["clients_per_round"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=job["learning_rate"],
            local_batch_size=batch_size,
        ),
        callbacks=[TimedRounds(clock)],
        send_metrics_to_platform=False,
    )
