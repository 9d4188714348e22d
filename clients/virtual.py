"""Many clients played by one process: in this one, or in a Ray actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from clients.cohort import begin, cohorts, train
from clients.evaluation import evaluate, own_test
from clients.gradients.batches import BatchIndices, DeviceData
from clients.gradients.flat import FlatModel, as_tensor, one_thread
from clients.memory.handshake import Memory
from clients.memory.spill import Spilled
from clients.training import DroppedError, Job, Plan, open_memory, plan, planned_steps
from clients.tuning import make_oracle
from flexfl.tasks import FederatedData
from traces import finished_steps

NOTHING = BatchIndices(np.empty(0, np.intp), np.empty(0, np.intp), 0)  # to train on


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
    """Clients that share one model in memory and train in cohorts.

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
    cohort, cohort_size
        How gradients are computed, and how many clients train in one call; see `make_oracle`.
    """

    def __init__(
        self,
        data: FederatedData,
        build: Callable[[], nn.Module],
        seed: int,
        device: str = "cpu",
        cohort: str = "auto",
        cohort_size: int = 0,
    ) -> None:
        self.data, self.seed = data, seed
        self.model = FlatModel(build(), device)
        self.oracle, self.limit = make_oracle(self.model, data.input_shape, cohort, cohort_size)
        self.examples = DeviceData(data, self.model.device)

    def recall(self, memory: Any) -> Memory | None:
        """Fetch what a client remembers: a job has it, or where it is."""
        remembered: Memory | None = memory.read() if isinstance(memory, Spilled) else memory
        return remembered

    def fit(
        self, weights: NDArray[Any], jobs: Sequence[Job], out: NDArray[np.float32] | None = None
    ) -> Answers:
        """Train each client from the same weights; what one of them raises is its own failure.

        Parameters
        ----------
        weights
            Global weights, shape (M,).
        jobs
            What the clients are asked to do.
        out
            Where the local weights go, shape (K, M) or longer; None: into new memory.
        """
        plans, failures = self._plans(jobs)
        start = as_tensor(weights).to(self.model.vector)
        vectors = np.empty((len(plans), len(weights)), np.float32) if out is None else out
        updates: list[tuple[int, list[NDArray[Any]], dict[str, int | float], int]] = []
        memories: list[Memory | None] = []
        sends_weights = True
        queue = cohorts(plans, self.limit, int(np.prod(self.data.input_shape)), self.oracle)[::-1]
        with one_thread():
            while queue:
                cohort = queue.pop()
                out = vectors[len(updates) : len(updates) + len(cohort)]
                try:
                    trained = train(self.oracle, self.examples, start, cohort, self.seed, out)
                except Exception as error:  # one client's fault must not end the round
                    if len(cohort) > 1:  # whose fault it is shows when each trains alone
                        queue += [[member] for member in reversed(cohort)]
                    else:
                        failures.append((cohort[0].job.client, f"{type(error).__name__}: {error}"))
                    continue
                sends_weights = trained.sends_weights
                for member, update in zip(cohort, trained.updates, strict=True):
                    updates.append((member.job.client, update.extra, update.metrics, member.num_examples))
                    memories.append(update.memory)
        vectors = vectors[: len(updates)]
        return Answers(vectors if sends_weights else vectors[:, :0], updates, memories, failures)

    def evaluate(self, weights: NDArray[Any], jobs: Sequence[Job]) -> Scores:
        """Test each client's model, the personal one where the method has such, on examples of its kind."""
        scores: list[tuple[int, float, int, float]] = []
        failures: list[tuple[int, str]] = []
        start = as_tensor(weights).to(self.model.vector)
        with one_thread():
            for job in jobs:
                try:
                    examples = own_test(self.data, job.client)
                    opened = open_memory(job, self.recall(job.memory))
                    rule = begin(start[None], [Plan(job, NOTHING, 0, *opened)])
                    self.model.load(rule.personal()[0])
                    loss, accuracy = evaluate(self.model, examples)
                except Exception as error:  # one client's fault must not end the round
                    failures.append((job.client, f"{type(error).__name__}: {error}"))
                else:
                    scores.append((job.client, loss, len(examples[1]), accuracy))
        return Scores(scores, failures)

    def _plans(self, jobs: Sequence[Job]) -> tuple[list[Plan], list[tuple[int, str]]]:
        """What the clients are going to do; which of them do nothing, and why."""
        plans: list[Plan] = []
        failures: list[tuple[int, str]] = []
        planned = [planned_steps(job.config, int(self.data.sizes[job.client])) for job in jobs]
        finished = finished_steps([job.completion for job in jobs], planned).tolist()
        for job, steps in zip(jobs, finished, strict=True):
            try:
                plans.append(plan(job, steps, self.recall(job.memory), self.data, self.seed))
            except DroppedError as reason:
                failures.append((job.client, str(reason)))
            except Exception as error:  # one client's fault must not end the round
                failures.append((job.client, f"{type(error).__name__}: {error}"))
        return plans, failures
