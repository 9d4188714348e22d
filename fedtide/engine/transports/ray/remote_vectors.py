"""Vectors that stay where they were trained, and are summed there, so that only sums are sent.

They lie in the object store of their node, which spills to disk what does not fit. The driver owns them, so
that they outlive the worker; those of a node that is lost are trained again, to the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayError

from clients.simulated.jobs import Job
from clients.simulated.virtual import Answers
from fedtide.base.spill import let_go, new_rows
from fedtide.engine.transports.ray.actor import Sent
from fedtide.engine.transports.ray.liveness import engine_lost
from fedtide.engine.transports.ray.shared_rows import Rows
from fedtide.engine.transports.ray.workers import Worker, Workers
from strategies.core.parameters import FloatVector
from strategies.core.reply_vectors import Pending, RemoteVector, RemoteVectors


@dataclass(frozen=True, eq=False)
class OnNode(RemoteVector):
    """A vector in the object store of a node."""

    reference: Any
    node: str
    job: Job  # by which it can be trained again


class VectorsOnNodes(RemoteVectors):
    """The vectors of a round that lie on nodes.

    Parameters
    ----------
    workers
        Those that sum.
    origin, sent
        The weights that all clients started from, and the broadcast in which they were sent.
    train
        Trains clients again, and writes their vectors to rows that are given by client.
    """

    def __init__(
        self,
        workers: Workers,
        origin: FloatVector,
        sent: Sent,
        train: Callable[[list[Job], Mapping[int, Rows]], None],
    ) -> None:
        self._workers, self._origin, self._sent = workers, origin, sent
        self._train = train
        self._asked = Counter[Worker]()  # how many sums each worker was asked for
        self._count = self._read = 0

    @property
    def most_were_read(self) -> bool:
        """Whether most of the vectors had to be fetched; those of lost replies never are."""
        return 2 * self._read > self._count

    def add(self, jobs: Sequence[Job], answers: Answers, references: Sequence[Any], node: str) -> Answers:
        """Return the answers of a call, given with the buffers only, with vectors that lie on its node."""
        by_client, size = {job.client: job for job in jobs}, len(self._origin)
        vectors = np.empty(len(answers.vectors), object)
        clients = answers.reported["client"].tolist()
        for k, (client, buffers) in enumerate(zip(clients, answers.vectors, strict=True)):
            vectors[k] = OnNode(
                self, size, size * buffers.itemsize, buffers, references[k], node, by_client[client]
            )
        self._count += len(vectors)
        return answers._replace(vectors=vectors)

    def fetch(self, vectors: Sequence[RemoteVector]) -> Sequence[FloatVector]:
        """Copy vectors to this process; those that are lost are trained again."""
        rows = new_rows(len(vectors), len(self._origin), np.dtype(np.float32))
        lost: dict[int, tuple[Job, Rows]] = {}
        self._read += len(vectors)
        for row, vector in zip(rows, vectors, strict=True):
            assert isinstance(vector, OnNode)
            try:
                row[:] = self._workers.result(vector.reference)
            except RayError as error:
                if ended := engine_lost(error):
                    raise ended from error
                lost[vector.job.client] = vector.job, row
            let_go(row)
        if lost:
            self._train([job for job, _ in lost.values()], {client: row for client, (_, row) in lost.items()})
        return [*rows]

    def start_sum(
        self,
        vectors: Sequence[FloatVector | RemoteVector],
        coefficients: NDArray[np.float64],
        origin: FloatVector,
    ) -> Pending | None:
        """Have the sum done on the node that has most of the vectors; Ray brings it the others."""
        same = origin.ctypes.data == self._origin.ctypes.data and origin.dtype == self._origin.dtype
        if not (same and self._workers.ready):
            return None
        nodes = Counter(vector.node for vector in vectors if isinstance(vector, OnNode))
        worker = max(self._workers.ready, key=lambda one: (nodes[one.node], -self._asked[one]))
        self._asked[worker] += 1
        sent = [vector.reference if isinstance(vector, OnNode) else vector for vector in vectors]
        self._workers.check()
        call = worker.actor.weighted_sum.remote(self._sent, coefficients, len(origin), *sent)

        def result() -> NDArray[np.float64] | None:
            try:
                found: NDArray[np.float64] = self._workers.result(call)
            except RayError:  # whatever has happened shows when the vectors are fetched instead
                return None
            return found

        return result
