"""The Ray actor that simulates clients: what each of its methods is sent, and what it returns.

Jobs and answers travel as bytes: one object for each client would take Ray several times as long.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import numpy as np
import ray
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, ClientEnvironment, Scores, VirtualClients
from fedtide.base.contract import REPORTED
from fedtide.base.memory import keep_freed_memory
from fedtide.base.spill import let_go
from fedtide.engine.transports.ray.shared_rows import AttachedRows, Lease, Rows
from strategies.core.reply_vectors import add_weighted, sum_buffer

Packed = list[Any]
Sent = Packed | tuple[Any, ...]


class RayClients(VirtualClients):
    """Virtual clients whose memories are stored in Ray's object store."""

    survived: ClassVar = (*VirtualClients.survived, KeyboardInterrupt)  # Ctrl-C reaches the driver only

    def __init__(self, environment: ClientEnvironment) -> None:
        keep_freed_memory()
        super().__init__(environment)
        self.shared_rows = AttachedRows()
        gc.freeze()  # or the garbage collector would scan all of torch again and again

    def where(self) -> str:
        """Return the ID of the Ray node that this worker runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def fit_and_send(self, broadcast: Sent, jobs: Packed, lease: Packed | None = None) -> Packed:
        """Train and return answers, whose vectors are written to shared rows if there is a lease."""
        rows = None if lease is None else self.shared_rows.open(Lease(*lease))
        answers = self.fit(unpack_broadcast(broadcast), unpack_jobs(jobs), rows)
        return pack_answers(answers, answers.vectors if rows is None else answers.vectors.shape)

    def fit_and_keep(self, broadcast: Sent, jobs: Packed) -> list[Any]:
        """Train and return answers, then the vector of each client, which stays in this node's object store.

        With the answers comes whether vectors stay, of which they then have the buffers only. The vectors of
        clients that fail are None; so are all where clients send other arrays as well, or no weights.
        """
        clients, size = unpack_jobs(jobs), self.model.num_trainable
        answers = self.fit(unpack_broadcast(broadcast), clients)
        if answers.extra or answers.vectors.shape[1] < size:
            return [(pack_answers(answers, answers.vectors), False), *[None] * len(clients)]
        packed = pack_answers(answers, answers.vectors[:, size:].copy())
        return [(packed, True), *answers.vectors, *[None] * (len(clients) - len(answers.vectors))]

    def weighted_sum(
        self, broadcast: Sent, coefficients: NDArray[np.float64], size: int, *vectors: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Sum the updates of clients, weighted: see `add_weighted`. Shape (size,)."""
        total, origin = np.zeros(size), unpack_broadcast(broadcast).weights[:size]
        add_weighted(total, coefficients, vectors, origin, sum_buffer(len(vectors), size))
        return total

    def evaluate_and_send(self, broadcast: Sent, jobs: Packed) -> Scores:
        return self.evaluate(unpack_broadcast(broadcast), unpack_jobs(jobs))

    def load(self, memory: Any) -> Memory | None:
        return None if memory is None else cast(Memory, ray.get(memory))


def pack_broadcast(broadcast: Broadcast) -> Packed:
    """Return the arrays that all clients of a round receive, as bytes."""
    return [[array.dtype.str, array.tobytes()] for array in (broadcast.weights, *broadcast.shared)]


def unpack_broadcast(sent: Sent) -> Broadcast:
    """Return the broadcast that `pack_broadcast` was given, or a tuple from Ray's object store."""
    if isinstance(sent, tuple):
        return Broadcast(*sent)
    weights, *shared = (np.frombuffer(data, dtype) for dtype, data in sent)
    return Broadcast(weights, tuple(shared))


def pack_jobs(jobs: Sequence[Job]) -> Packed:
    """Return jobs, at least one; those that differ only in the client and its completion take 16 bytes."""
    common = jobs[0].config
    numbers = np.array([(job.client, job.completion) for job in jobs], np.float64)
    own = {k: tuple(job) for k, job in enumerate(jobs) if job.config is not common or _has_own(job)}
    return [common, numbers.tobytes(), own]


def unpack_jobs(packed: Packed) -> list[Job]:
    """Return the jobs that `pack_jobs` was given."""
    common, numbers, own = packed
    pairs = np.frombuffer(numbers).reshape(-1, 2).tolist()
    jobs = [Job(int(client), (), common, completion) for client, completion in pairs]
    for k, job in own.items():
        jobs[k] = Job(*job)
    return jobs


def _has_own(job: Job) -> bool:
    return bool(len(job.arrays)) or any(value is not None for value in job[4:])


def pack_answers(answers: Answers, vectors: Any) -> Packed:
    """Return answers, with their vectors or what stands for them."""
    own = [answers.extra, answers.memories] if answers.extra or answers.memories else None
    rest = [answers.farewells, answers.failures, answers.notes]
    return [[answers.reported.tobytes(), answers.seconds], own, rest if any(rest) else None, vectors]


def unpack_answers(packed: Packed, rows: Rows | None = None) -> Answers:
    """Return answers; with rows, to which a worker has written their vectors, or they are copied."""
    (reported, seconds), own, rest, vectors = packed
    if rows is not None:
        count, width = vectors if isinstance(vectors, tuple) else vectors.shape
        if not isinstance(vectors, tuple):
            rows[:count, :width] = vectors
            let_go(rows[:count])
        vectors = rows[:count, :width]
    extra, memories = own or ((), ())
    farewells, failures, notes = rest or ({}, (), ())
    numbers = np.frombuffer(reported, REPORTED)
    return Answers(vectors, numbers, extra, memories, farewells, failures, notes, seconds)
