"""Many clients simulated by one process: this one, or a Ray actor."""

from __future__ import annotations

import errno
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clients.gradients.batches import DeviceData
from clients.gradients.flat import FlatModel, as_tensor, one_thread, own_draws
from clients.gradients.oracle import Loop
from clients.gradients.oracles import make_oracle
from clients.gradients.precision import set_precision
from clients.memory.handshake import Memory, open_memory
from clients.memory.spill import Spilled
from clients.rules.vectors import concatenate
from clients.simulated.cohort import TrainedCohort, cohorts, on, train
from clients.simulated.evaluation import evaluate, own_test
from clients.simulated.jobs import Broadcast, Job, PreparedJob, prepare
from clients.training import make_rule
from fedtide.base.contract import REPORTED, Reported, Scalar
from fedtide.base.errors import described, own_places, told
from fedtide.base.spill import let_go, new_rows
from fedtide.tasks import FederatedData
from traces import finished_steps

MAX_TRACE = 10_000  # characters
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
Arrays = Sequence[NDArray[Any]]


class Failure(NamedTuple):
    """A client that was asked and returns nothing."""

    client: int
    reason: str
    trace: str = ""  # if a part of the user's own has failed: its traceback, and `told`


class Answers(NamedTuple):
    """The results of a list of training jobs: those of the K clients that trained are in columns.

    `vectors`, (K, M), has the local weights of these clients, and after them the model's buffers; the buffers
    alone where the method sends no weights. `extra` are the method's own arrays, empty where no client sends
    any, and `memories` are what the clients remember from now on, empty where all are unchanged.
    """

    vectors: NDArray[Any]
    reported: Reported
    extra: Sequence[Arrays] = ()
    memories: Sequence[Memory] = ()
    farewells: Mapping[int, Arrays] = {}  # the states of the clients that leave
    failures: Sequence[Failure] = ()  # the other clients
    notes: tuple[str, ...] = ()  # sentences for the user
    seconds: float = 0.0  # how long the process was at work


class Score(NamedTuple):
    """A client's evaluation."""

    client: int
    loss: float
    num_examples: int
    metrics: dict[str, Scalar]


class Scores(NamedTuple):
    """The results of a list of evaluation jobs."""

    scores: list[Score]
    failures: list[Failure]


@dataclass(frozen=True)
class ClientEnvironment:
    """What a process needs to simulate clients."""

    data: FederatedData
    build_model: Callable[[], nn.Module]
    seed: int  # of the batches
    device: str = "cpu"
    cohort: str = "auto"  # how gradients are computed, see `clients.gradients.oracles`
    cohort_size: int = 0  # how many clients train in one call; 0: chosen
    timeout: float = 0.0  # seconds for a call that trains or evaluates, then the process ends; 0: no limit
    proven: bool = False  # cohort and size are what `choose` has chosen in this process
    precision: str = "float32"  # see `clients.gradients.precision`


class VirtualClients:
    """Clients that use one model in turn and train in cohorts."""

    survived: ClassVar[tuple[type[BaseException], ...]] = (Exception, SystemExit)
    """What code of a client may raise without ending more than the client's part in the round.

    Where Ctrl-C can reach this process, it is to end the run.
    """

    def __init__(self, environment: ClientEnvironment) -> None:
        self.data, self.seed, self.timeout = environment.data, environment.seed, environment.timeout
        set_precision(environment.precision, torch.device(environment.device))
        of_model = (environment.device, self.data.criterion, environment.precision)
        self.model = FlatModel(environment.build_model(), *of_model)
        self.oracle, self.limit = make_oracle(
            self.model, self.data, environment.cohort, environment.cohort_size, environment.proven
        )
        self.dtype = torch.empty(0, dtype=self.model.vector.dtype).numpy().dtype
        self.examples = DeviceData(self.data, self.model.device)
        # Autograd trains any model, also one that draws only for some inputs: no trial would show that.
        self.draws = self.model.random.are_needed or isinstance(self.oracle, Loop)

    def load(self, memory: Any) -> Memory | None:
        """Return a client's memory, given `Job.memory`; an error is not of a client and ends the run."""
        loaded: Memory | None = memory.read() if isinstance(memory, Spilled) else memory
        return loaded

    def fit(self, broadcast: Broadcast, jobs: Sequence[Job], out: NDArray[Any] | None = None) -> Answers:
        """Train each client from the same weights; an exception is a failure of its client alone.

        `out` receives the local weights and buffers, a row for each client; it may be longer.
        """
        began, failures = time.perf_counter(), list[Failure]()
        farewells = self._farewells([job for job in jobs if job.config.farewell])
        prepared = self._prepare([job for job in jobs if not job.config.farewell], failures)
        start, *shared = (as_tensor(a).to(self.model.vector) for a in (broadcast.weights, *broadcast.shared))
        vectors = new_rows(len(prepared), len(start), self.dtype) if out is None else out
        parts: list[TrainedCohort] = []
        count, sends_weights = 0, True
        too_many: list[int] = []  # sizes of cohorts for which memory did not suffice
        queue = cohorts(prepared, self.limit, int(np.prod(self.data.input_shape)))[::-1]
        with one_thread(), own_draws(self.model.device) if self.draws else nullcontext():
            while queue:
                cohort = queue.pop()
                rows = vectors[count : count + len(cohort)]
                trained = self._train(start, shared, cohort, rows)
                let_go(rows)
                if isinstance(trained, TrainedCohort):
                    sends_weights &= trained.sends_weights
                    parts.append(trained)
                    count += len(cohort)
                    continue
                out_of_memory, failure = trained
                if out_of_memory:
                    too_many.append(len(cohort))
                    half = -(-len(cohort) // 2)
                    _release_memory()
                else:
                    half = 1  # whose error it is shows when each trains alone
                if len(cohort) == 1:
                    failures.append(failure)
                else:
                    queue += [cohort[at : at + half] for at in range(0, len(cohort), half)][::-1]
        sent = vectors[:count]
        if not sends_weights:  # buffers come to the front of memory that others may read
            buffers = sent[:, self.model.num_trainable :].copy()
            sent = sent[:, : buffers.shape[1]]
            sent[:] = buffers
        notes, seconds = self._shrink_cohorts(too_many), time.perf_counter() - began
        return Answers(
            sent,
            np.concatenate([np.empty(0, REPORTED), *(part.reported for part in parts)]),
            [own for part in parts for own in part.extra],
            [memory for part in parts for memory in part.memories],
            farewells,
            failures,
            notes,
            seconds,
        )

    def evaluate(self, broadcast: Broadcast, jobs: Sequence[Job]) -> Scores:
        """Evaluate each client's model, the personal one where the method has one, on `own_test`."""
        scores: list[Score] = []
        failures: list[Failure] = []
        start, *shared = (as_tensor(a).to(self.model.vector) for a in (broadcast.weights, *broadcast.shared))
        trained = self.model.num_trainable
        with one_thread():
            for job in jobs:
                memory = self.load(job.memory)
                try:
                    with time_limit(self.timeout):
                        self.model.check_frozen(job.config.frozen_checksum)
                        examples = own_test(self.data, job.client)
                        opened, _ = open_memory(memory, job.config.last_accepted)
                        at = start[None, :trained]
                        rule = make_rule(job.config, at, shared, [job.arrays], [opened], on(start.device))
                        self.model.load(cast(Tensor, concatenate(rule.personal(), start[None, trained:])[0]))
                        loss, score = evaluate(self.model, examples)
                except self.survived as error:  # one client's error must not end the round
                    failures.append(_failure(job, error))
                else:
                    measured: dict[str, Scalar] = {self.data.criterion.metric.name: score}
                    scores.append(Score(job.client, loss, len(examples[1]), measured))
        return Scores(scores, failures)

    def _train(
        self, start: Tensor, shared: list[Tensor], cohort: list[PreparedJob], rows: NDArray[Any]
    ) -> TrainedCohort | tuple[bool, Failure]:
        """Train a cohort; return whether it failed for want of memory, and what it raised, in words.

        The error itself has the frames, which hold its tensors.
        """
        try:
            with time_limit(self.timeout):
                return train(self.oracle, self.examples, start, shared, cohort, self.seed, rows)
        except self.survived as error:  # one client's error must not end the round
            return is_out_of_memory(error), _failure(cohort[0].job, error)

    def _shrink_cohorts(self, too_many: list[int]) -> tuple[str, ...]:
        """Make all later cohorts smaller, if that helps; return a note about it."""
        # A client whose own work does not fit must not slow the others down.
        if not too_many or 1 in too_many:
            return ()
        smallest = min(too_many)
        self.limit = -(-smallest // 2)
        note = f"not enough memory to train {smallest} clients in one call: from now on at most {self.limit}"
        return (note,)

    def _farewells(self, jobs: Sequence[Job]) -> dict[int, Arrays]:
        """Return the states of clients that leave, empty where a client has lost it."""
        states = dict[int, Arrays]()
        for job in jobs:
            memory, _ = open_memory(self.load(job.memory), job.config.last_accepted)
            states[job.client] = [*memory.committed.values()]
        return states

    def _prepare(self, jobs: Sequence[Job], failures: list[Failure]) -> list[PreparedJob]:
        """Prepare the jobs of the clients that train; add the others to the failures."""
        prepared: list[PreparedJob] = []
        planned = [job.config.planned_steps(int(self.data.sizes[job.client])) for job in jobs]
        finished = finished_steps([job.completion for job in jobs], planned).tolist()
        for job, steps in zip(jobs, finished, strict=True):
            if not steps:
                failures.append(Failure(job.client, "dropped in mid-round"))
                continue
            memory = self.load(job.memory)
            try:
                self.model.check_frozen(job.config.frozen_checksum)
                prepared.append(prepare(job, steps, memory, self.data, self.seed, self.draws))
            except self.survived as error:  # one client's error must not end the round
                failures.append(_failure(job, error))
        return prepared


def _failure(job: Job, error: BaseException) -> Failure:
    if not (places := own_places(error)):
        return Failure(job.client, described(error))
    trace = "".join([*traceback.format_exception(error), told(error)])[-MAX_TRACE:]
    return Failure(job.client, f"{described(error)} {places[-1]}", trace)


def _release_memory() -> None:
    """Give back what a call that failed has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that this machine, or its GPU, has too little memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if what is done inside takes longer than `seconds`; 0: no limit.

    Only that ends code that hangs in C. Standard error then shows the lines at which the threads were.
    """
    if not seconds:
        yield
        return
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
