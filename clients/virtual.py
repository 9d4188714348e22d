"""Many clients simulated by one process: this one, or a Ray actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clients.cohort import begin, cohorts, train
from clients.environment import ClientEnvironment
from clients.evaluation import evaluate, own_test
from clients.gradients.batches import BatchIndices, DeviceData
from clients.gradients.flat import FlatModel, as_tensor, one_thread
from clients.memory.handshake import Memory
from clients.memory.spill import Spilled
from clients.rules.base import no_fisher
from clients.training import Broadcast, DroppedError, Job, Plan, open_memory, plan
from clients.tuning import make_oracle
from flexfl.contract import metrics
from traces import finished_steps

NO_BATCHES = BatchIndices(np.empty(0, np.intp), np.empty(0, np.intp), 0)


class Failure(NamedTuple):
    """A client that was asked and has nothing to hand in."""

    client: int
    reason: str


class ClientUpdate(NamedTuple):
    """What a client hands in besides its weights.

    Attributes
    ----------
    client
        Its index.
    extra
        The method's own arrays.
    metrics
        See `flexfl.contract.metrics`.
    num_examples
        n_k.
    memory
        What it remembers from now on; None: nothing new.
    """

    client: int
    extra: list[NDArray[Any]]
    metrics: dict[str, int | float]
    num_examples: int
    memory: Memory | None


class Answers(NamedTuple):
    """What came of a list of jobs.

    Attributes
    ----------
    vectors
        Local weights of those who succeeded, shape (K, M); (K, 0) where the method sends none.
    updates
        What else each of them hands in.
    failures
        The others.
    """

    vectors: NDArray[np.float32]
    updates: list[ClientUpdate]
    failures: list[Failure]


class Score(NamedTuple):
    """A client's evaluation."""

    client: int
    loss: float
    num_examples: int
    accuracy: float


class Scores(NamedTuple):
    """What came of a list of jobs of evaluation."""

    scores: list[Score]
    failures: list[Failure]


class VirtualClients:
    """Clients that share one model in memory and train in cohorts.

    Parameters
    ----------
    environment
        Their data, their model, and how they train.
    """

    def __init__(self, environment: ClientEnvironment) -> None:
        self.data, self.seed = environment.data, environment.seed
        self.model = FlatModel(environment.build_model(), environment.device)
        self.oracle, self.limit = make_oracle(
            self.model, self.data.input_shape, environment.cohort, environment.cohort_size
        )
        self.examples = DeviceData(self.data, self.model.device)

    def load(self, memory: Any) -> Memory | None:
        """Return what a client remembers: a job has it, or where it is."""
        loaded: Memory | None = memory.read() if isinstance(memory, Spilled) else memory
        return loaded

    def fit(
        self, broadcast: Broadcast, jobs: Sequence[Job], out: NDArray[np.float32] | None = None
    ) -> Answers:
        """Train each client from the same weights; what one of them raises is its own failure.

        Parameters
        ----------
        broadcast
            Global weights and what else is the same for all.
        jobs
            What the clients are asked to do.
        out
            Where the local weights go, shape (K, M) or longer; None: into new memory.
        """
        updates, failures = self._farewells([job for job in jobs if job.config.farewell])
        plans = self._plans([job for job in jobs if not job.config.farewell], failures)
        start, *shared = (as_tensor(a).to(self.model.vector) for a in (broadcast.weights, *broadcast.shared))
        count, sends_weights = len(updates) + len(plans), not updates
        vectors = np.empty((count, len(start)), np.float32) if out is None else out
        queue = cohorts(plans, self.limit, int(np.prod(self.data.input_shape)), self.oracle)[::-1]
        with one_thread():
            while queue:
                cohort = queue.pop()
                out = vectors[len(updates) : len(updates) + len(cohort)]
                try:
                    trained = train(self.oracle, self.examples, start, shared, cohort, self.seed, out)
                except Exception as error:  # one client's fault must not end the round
                    if len(cohort) > 1:  # whose fault it is shows when each trains alone
                        queue += [[member] for member in reversed(cohort)]
                    else:
                        failures.append(_failure(cohort[0].job, error))
                    continue
                sends_weights &= trained.sends_weights
                for member, u in zip(cohort, trained.updates, strict=True):
                    client = member.job.client
                    updates.append(ClientUpdate(client, u.extra, u.metrics, member.num_examples, u.memory))
        vectors = vectors[: len(updates)]
        return Answers(vectors if sends_weights else vectors[:, :0], updates, failures)

    def evaluate(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Scores:
        """Test each client's model, the personal one where the method has such, on examples of its kind."""
        scores: list[Score] = []
        failures: list[Failure] = []
        start, *shared = (as_tensor(a).to(self.model.vector) for a in (broadcast.weights, *broadcast.shared))
        with one_thread():
            for job in jobs:
                try:
                    examples = own_test(self.data, job.client)
                    opened = open_memory(job, self.load(job.memory))
                    rule = begin(start[None], shared, [Plan(job, NO_BATCHES, 0, *opened)], no_fisher)
                    self.model.load(rule.personal()[0])
                    loss, accuracy = evaluate(self.model, examples)
                except Exception as error:  # one client's fault must not end the round
                    failures.append(_failure(job, error))
                else:
                    scores.append(Score(job.client, loss, len(examples[1]), accuracy))
        return Scores(scores, failures)

    def _farewells(self, jobs: Sequence[Job]) -> tuple[list[ClientUpdate], list[Failure]]:
        """What clients that leave remember; nothing if they have forgotten it."""
        updates: list[ClientUpdate] = []
        failures: list[Failure] = []
        for job in jobs:
            try:
                memory, _ = open_memory(job, self.load(job.memory))
            except Exception as error:  # one client's fault must not end the round
                failures.append(_failure(job, error))
                continue
            told: dict[str, int | float] = {metrics.CLIENT_ID: job.client, metrics.ROUND: job.config.round}
            state = list(memory.committed.values())
            updates.append(ClientUpdate(job.client, state, told, int(self.data.sizes[job.client]), None))
        return updates, failures

    def _plans(self, jobs: Sequence[Job], failures: list[Failure]) -> list[Plan]:
        """What the clients are going to do; those that do nothing are added to the failures."""
        plans: list[Plan] = []
        planned = [job.config.planned_steps(int(self.data.sizes[job.client])) for job in jobs]
        finished = finished_steps([job.completion for job in jobs], planned).tolist()
        for job, steps in zip(jobs, finished, strict=True):
            try:
                plans.append(plan(job, steps, self.load(job.memory), self.data, self.seed))
            except DroppedError as reason:
                failures.append(Failure(job.client, str(reason)))
            except Exception as error:  # one client's fault must not end the round
                failures.append(_failure(job, error))
        return plans


def _failure(job: Job, error: Exception) -> Failure:
    return Failure(job.client, f"{type(error).__name__}: {error}")
