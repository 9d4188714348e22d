"""Many clients played by one process: in this one, or in a Ray actor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.evaluation import evaluate, own_test
from clients.flat import FlatModel
from clients.memory import Memory
from clients.training import DroppedError, Update, begin, train
from tasks import FederatedData


class Job(NamedTuple):
    """What one client is asked to do.

    Attributes
    ----------
    client
        Its index.
    arrays, config
        What it got besides the weights.
    completion
        Share of the planned steps that its availability lets it finish.
    memory
        What it remembers, or where that is, see `VirtualClients.recall`; None: nothing yet.
    """

    client: int
    arrays: Sequence[NDArray[Any]]
    config: dict[str, Any]
    completion: float
    memory: Any = None


class Answers(NamedTuple):
    """What came of a list of jobs.

    Attributes
    ----------
    vectors
        Local weights of those who succeeded, shape (K, M); (K, 0) where the method sends none.
    updates
        (client, extra arrays, metrics, n_k) of each of them.
    memories
        What each of them remembers from now on; None where the method needs no memory at the client.
    failures
        (client, reason) of the others.
    """

    vectors: NDArray[np.float32]
    updates: list[tuple[int, list[NDArray[Any]], dict[str, int | float], int]]
    memories: list[Memory | None]
    failures: list[tuple[int, str]]


class Scores(NamedTuple):
    """What came of a list of jobs of evaluation.

    Attributes
    ----------
    scores
        (client, loss, number of examples, accuracy) of those who succeeded.
    failures
        (client, reason) of the others.
    """

    scores: list[tuple[int, float, int, float]]
    failures: list[tuple[int, str]]


class VirtualClients:
    """Clients that share one model in memory and train one after the other.

    Parameters
    ----------
    data
        The data of all clients.
    build
        Makes the model.
    seed
        Seed of the batches.
    device
        Where to train.
    """

    def __init__(
        self, data: FederatedData, build: Callable[[], nn.Module], seed: int, device: str = "cpu"
    ) -> None:
        self.data, self.seed = data, seed
        self.model = FlatModel(build(), device)

    def recall(self, memory: Any) -> Memory | None:
        """Fetch what a client remembers: a job has it, unless it is kept elsewhere."""
        remembered: Memory | None = memory
        return remembered

    def fit(self, weights: NDArray[Any], jobs: Sequence[Job]) -> Answers:
        """Train each client from the same weights, shape (M,); what one of them raises is its own failure."""
        vectors = np.empty((0, len(weights)), np.float32)
        updates: list[tuple[int, list[NDArray[Any]], dict[str, int | float], int]] = []
        memories: list[Memory | None] = []
        failures: list[tuple[int, str]] = []
        with _one_thread():
            for job in jobs:
                try:
                    update = self._train(weights, job)
                except DroppedError as reason:
                    failures.append((job.client, str(reason)))
                except Exception as error:  # one client's fault must not end the round
                    failures.append((job.client, f"{type(error).__name__}: {error}"))
                else:
                    if not updates:  # all do what one method says: send weights, or no weights at all
                        vectors = np.empty((len(jobs), len(update.vector)), np.float32)
                    vectors[len(updates)] = update.vector
                    updates.append((job.client, update.extra, update.metrics, update.num_examples))
                    memories.append(update.memory)
        return Answers(vectors[: len(updates)], updates, memories, failures)

    def evaluate(self, weights: NDArray[Any], jobs: Sequence[Job]) -> Scores:
        """Test each client's model, the personal one where the method has such, on examples of its kind."""
        scores: list[tuple[int, float, int, float]] = []
        failures: list[tuple[int, str]] = []
        with _one_thread():
            for job in jobs:
                try:
                    examples = own_test(self.data, job.client)
                    memory = self.recall(job.memory)
                    rule, *_ = begin(self.model, weights, job.arrays, job.config, memory)
                    self.model.vector.copy_(rule.personal())
                    loss, accuracy = evaluate(self.model, examples)
                except Exception as error:  # one client's fault must not end the round
                    failures.append((job.client, f"{type(error).__name__}: {error}"))
                else:
                    scores.append((job.client, loss, len(examples[1]), accuracy))
        return Scores(scores, failures)

    def _train(self, weights: NDArray[Any], job: Job) -> Update:
        return train(
            self.model,
            self.data,
            job.client,
            weights,
            job.arrays,
            job.config,
            job.completion,
            self.seed,
            self.recall(job.memory),
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: small models gain nothing from more, and results stay the same everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
