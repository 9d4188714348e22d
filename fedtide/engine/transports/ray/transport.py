"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor and round."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from clients.environment import ClientEnvironment
from clients.memory.handshake import Memory
from clients.simulated.jobs import Broadcast, Job, Updates
from clients.simulated.virtual import Answers, Failure, Scores, VirtualClients
from fedtide.engine.allocation import keep_freed_memory
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.calls import LAST, Calls, Part
from fedtide.engine.transports.ray.cluster import start_ray
from fedtide.engine.transports.ray.job_columns import (
    Packed,
    Sent,
    pack_answers,
    pack_broadcast,
    pack_jobs,
    unpack_answers,
    unpack_broadcast,
    unpack_jobs,
)
from fedtide.engine.transports.ray.liveness import PATIENCE, Liveness, engine_lost
from fedtide.engine.transports.ray.shared_rows import AttachedRows, Lease, SharedRows
from fedtide.engine.transports.ray.workers import Worker, Workers
from fedtide.engine.transports.virtual import Simulation, VirtualTransport
from fedtide.ground.spill import let_go

SMALL = 1 << 16  # bytes; Ray sends arguments of up to 100 kB together with the call
PART = 1 << 28  # bytes of the vectors that one call sends over the network, unless one client's are more


def assign(work: list[float], num_workers: int) -> list[list[int]]:
    """Assign jobs to workers, longest first, each to the one with the least work so far.

    `work` is the expected duration of each job. Returns the positions of each worker's jobs.
    """
    assigned: list[list[int]] = [[] for _ in range(num_workers)]
    loads = [(0.0, worker) for worker in range(num_workers)]
    for position in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        load, worker = heapq.heappop(loads)
        assigned[worker].append(position)
        heapq.heappush(loads, (load + work[position], worker))
    return assigned


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

    def evaluate_and_send(self, broadcast: Sent, jobs: Packed) -> Scores:
        return self.evaluate(unpack_broadcast(broadcast), unpack_jobs(jobs))

    def load(self, memory: Any) -> Memory | None:
        return None if memory is None else cast(Memory, ray.get(memory))


class RayTransport(VirtualTransport):
    """Simulates the clients in Ray actors, each of which holds the data and one model.

    All actors on a machine share one copy of the data. If an actor fails, its clients are asked again in the
    same round (see `Calls`), and it is replaced; on nodes that join a cluster further ones start. The
    arguments are as in the settings, and `tell` takes a line for the user.
    """

    def __init__(
        self,
        simulation: Simulation,
        num_workers: int,
        client_gpus: float,
        address: str,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        super().__init__(simulation)
        environment = simulation.environment
        self.sizes = environment.data.sizes
        self._own = None if ray.is_initialized() else start_ray(num_workers, address)
        self.leftovers = self._own.leftovers if self._own else []  # of killed processes, now removed
        self._nodes = self._own.nodes if self._own else None
        resources = ray.cluster_resources()
        gpus = client_gpus if resources.get("GPU", 0) else 0

        def wanted() -> int:
            """Return how many workers there should be: one for each share of a GPU, or for each core."""
            if self._nodes:
                self._nodes.check()
            there = self._nodes.resources if self._nodes else resources
            if num_workers:
                return num_workers
            return int(there.get("GPU", 0) / gpus) if gpus else max(1, int(there.get("CPU", 1)))

        actor = ray.remote(num_cpus=1, num_gpus=gpus)(RayClients)
        start = partial(actor.remote, ray.put(replace(environment, device="cuda" if gpus else "cpu")))
        self.shared_rows = SharedRows()
        self._liveness = Liveness(PATIENCE if address else 0.0)
        self.workers = Workers(start, wanted, self._liveness, tell)
        self._timeout = environment.timeout
        self._suspects: set[int] = set()  # clients that have made a worker fail

    def is_stuck(self) -> bool:
        return not self.workers.ready

    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Answers]:
        """Yield the answers of each call when it is done.

        Actors on this machine write their vectors into memory that they share with this process; actors on
        other machines, and those that take over the clients of one that failed, send them as one array.
        """
        work = [job.config.planned_steps(int(self.sizes[job.client])) * job.completion for job in jobs]
        parts = self._parts(jobs, work, broadcast.weights.nbytes)
        count = sum(len(part.jobs) for part in parts if part.at is not None)
        try:
            lease, rows = self.shared_rows.lend(count, len(broadcast.weights), np.dtype(np.float32))
        except OSError as error:
            raise EngineLost(f"no room for the updates of {count} clients: {error}; set TMPDIR") from error
        sent = self._put(broadcast)

        def submit(worker: Worker, part: Part) -> Any:
            jobs = pack_jobs(part.jobs)
            if part.at is None or not worker.local:
                return worker.actor.fit_and_send.remote(sent, jobs)
            return worker.actor.fit_into.remote(sent, jobs, [*lease.part(part.at, len(part.jobs))])

        return self._answers(self._calls(parts, submit), rows)

    def _answers(self, calls: Calls, rows: NDArray[np.float32]) -> Iterator[Answers]:
        """Wait for calls that write to shared rows or return their vectors."""
        for part, result in calls:
            if isinstance(result, Failure):
                yield Answers(rows[:0], Updates(), [], [result])
            elif isinstance(result, Answers):
                yield result if part.at is None else _moved(result, rows[part.at :])
            else:
                yield unpack_answers(result, rows[part.at :])

    def store(self, client: int, memory: Memory) -> Any:
        """Store a client's memory in the object store, which spills to disk what does not fit.

        This process owns it, so that it outlives the actor that made it.
        """
        with self._object_store():
            return ray.put(memory)

    def read(self, stored: Any) -> Memory:
        with self._object_store():
            return cast(Memory, ray.get(stored))

    def run_evaluation(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Scores]:
        sent = self._put(broadcast)

        def submit(worker: Worker, part: Part) -> Any:
            return worker.actor.evaluate_and_send.remote(sent, pack_jobs(part.jobs))

        for _, result in self._calls(self._parts(jobs, [1.0] * len(jobs)), submit):
            yield Scores([], [result]) if isinstance(result, Failure) else result

    def close(self) -> None:
        """Stop the actors, and Ray if this transport started it.

        If Ray has died, this process must not call it any more: that may end the process at once.
        """
        alive = self.workers.close()
        self._liveness.close()
        self.shared_rows.close()
        if self._own and alive:
            self._own.stop()

    def _parts(self, jobs: list[Job], work: list[float], size: int = 1) -> list[Part]:
        """Divide jobs among the workers that are ready; clients that have made one fail are alone.

        `size`: bytes that each client returns.
        """
        self.workers.prepare()
        near = all(worker.local for worker in self.workers.ready)
        most = max(1, len(jobs) if near else PART // size)
        usual = [i for i, job in enumerate(jobs) if job.client not in self._suspects]
        parts, start = [], 0
        for positions in assign([work[i] for i in usual], len(self.workers.ready)):
            for first in range(0, len(positions), most):
                some = positions[first : first + most]
                parts.append(Part([jobs[usual[i]] for i in some], 0, start))
                start += len(some)
        return parts + [Part([job], LAST) for job in jobs if job.client in self._suspects]

    def _calls(self, parts: list[Part], submit: Callable[[Worker, Part], Any]) -> Calls:
        return Calls(self.workers, parts, submit, self._suspects, self._timeout, self._failed)

    def _failed(self, note: str) -> None:
        """Note that a worker has failed, and that it may still be writing to shared memory."""
        self.shared_rows.retire()
        self.notes = [*self.notes, note]

    def _put(self, broadcast: Broadcast) -> Any:
        """Put the arrays into the object store; small ones go with each call, which is faster."""
        size = sum(array.nbytes for array in (broadcast.weights, *broadcast.shared))
        if size <= SMALL:
            return pack_broadcast(broadcast)
        with self._object_store():
            return ray.put(tuple(broadcast))

    @contextmanager
    def _object_store(self) -> Iterator[None]:
        """Use the object store, which without its raylet would end this process."""
        self._liveness.check()
        try:
            yield
        except RayError as error:
            raise engine_lost(error) or error from error


def _moved(answers: Answers, rows: NDArray[np.float32]) -> Answers:
    """Return answers whose vectors have been copied from Ray's object store into rows, and let go."""
    count, width = answers.vectors.shape
    rows[:count, :width] = answers.vectors
    let_go(rows[:count])
    return answers._replace(vectors=rows[:count, :width])
