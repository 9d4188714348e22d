"""The Ray actor that simulates clients: what each of its methods is sent, and what it returns."""

from __future__ import annotations

import gc
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import ray
from numpy.typing import NDArray

from clients.memory.handshake import Memory
from clients.simulated.virtual import Answers, ClientEnvironment, Scores, VirtualClients
from fedtide.engine.transports.ray.job_columns import (
    Packed,
    Sent,
    count_jobs,
    pack_answers,
    unpack_broadcast,
    unpack_jobs,
)
from fedtide.engine.transports.ray.shared_rows import AttachedRows, Lease
from fedtide.ground.memory import keep_freed_memory
from strategies.core.reply_vectors import add_weighted, sum_buffer


class Kept(NamedTuple):
    """Answers whose vectors have stayed where they were trained; instead of them, it has their buffers."""

    answers: Answers


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

    def fit_into(self, broadcast: Sent, jobs: Packed, lease: list[Any]) -> Packed:
        """Train into memory shared with the driver; return answers without their vectors."""
        rows = self.shared_rows.open(Lease(*lease))
        return pack_answers(self.fit(unpack_broadcast(broadcast), unpack_jobs(jobs), rows))

    def fit_and_send(self, broadcast: Sent, jobs: Packed) -> Answers:
        """Train and return complete answers: to a driver on another machine, or after a fault."""
        return self.fit(unpack_broadcast(broadcast), unpack_jobs(jobs))

    def fit_and_keep(self, broadcast: Sent, jobs: Packed) -> list[Any]:
        """Train and return answers, then the vector of each client, which stays in this node's object store.

        The vectors of clients that fail are None; so are all where clients send other arrays as well, or no
        weights, whose answers are complete.
        """
        answers, size = self.fit_and_send(broadcast, jobs), self.model.num_trainable
        if answers.extra or answers.vectors.shape[1] < size:
            return [answers, *[None] * count_jobs(jobs)]
        kept = Kept(answers._replace(vectors=answers.vectors[:, size:].copy()))
        return [kept, *answers.vectors, *[None] * (count_jobs(jobs) - len(answers.vectors))]

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
