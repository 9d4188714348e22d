"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor and round."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from clients.environment import ClientEnvironment
from clients.memory.handshake import Memory
from clients.training import Broadcast, Job
from clients.virtual import Answers, Failure, Scores, VirtualClients
from flexfl.contract import FitConfig
from flexfl.engine.transports.ray_cluster import start_ray
from flexfl.engine.transports.shared_rows import AttachedRows, Lease, SharedRows
from flexfl.engine.transports.virtual import VirtualTransport
from strategies import FlatParameters
from traces import RoundAvailability

SMALL = 1 << 16  # bytes; Ray sends arguments of up to 100 kB together with the call


def assign(work: list[float], num_workers: int) -> list[list[int]]:
    """Assign jobs to workers, longest first, each to the worker with the least work so far.

    Parameters
    ----------
    work
        Expected duration of each job, in any unit.
    num_workers
        Number of workers.

    Returns
    -------
    list
        Positions of each worker's jobs.
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

    def __init__(self, environment: ClientEnvironment) -> None:
        super().__init__(environment)
        self.shared_rows = AttachedRows()
        gc.freeze()  # or the garbage collector would scan all of torch again and again

    def node(self) -> str:
        """Return the ID of the Ray node that this worker runs on."""
        return cast(str, ray.get_runtime_context().get_node_id())

    def fit_into(
        self, broadcast: tuple[Any, ...], jobs: list[tuple[Any, ...]], lease: Lease
    ) -> tuple[Answers, tuple[int, ...]]:
        """Train into memory shared with the driver; return answers without vectors, and the vectors' shape.

        Broadcast and jobs are plain tuples, which Ray serialises in half the time.
        """
        rows = self.shared_rows.open(lease)
        answers = self.fit(Broadcast(*broadcast), [Job(*job) for job in jobs], rows)
        return answers._replace(vectors=np.empty((0, 0), np.float32)), answers.vectors.shape

    def fit_and_send(self, broadcast: tuple[Any, ...], jobs: list[Job]) -> Answers:
        """Train and return complete answers, for a driver on another machine."""
        return self.fit(Broadcast(*broadcast), jobs)

    def evaluate_and_send(self, broadcast: tuple[Any, ...], jobs: list[Job]) -> Scores:
        """Evaluate."""
        return self.evaluate(Broadcast(*broadcast), jobs)

    def load(self, memory: Any) -> Memory | None:
        """Return a client's memory from the object store."""
        return None if memory is None else cast(Memory, ray.get(memory))


class RayTransport(VirtualTransport):
    """Simulates the clients in Ray actors, each of which holds the data and one model.

    If an actor dies, its clients fail in that round, and a new actor replaces it.

    Parameters
    ----------
    environment
        The clients' data and model; all actors on a machine share one copy of the data.
    initial, availability, defaults, lost
        See `VirtualTransport`.
    num_workers
        Number of actors; 0: one per share of a GPU, or without GPUs one per CPU core.
    client_gpus
        Share of a GPU per actor; 0: train on the CPU.
    address
        Address of a running Ray cluster; empty: start Ray on this machine.
    """

    def __init__(
        self,
        environment: ClientEnvironment,
        initial: FlatParameters,
        availability: Callable[[int], RoundAvailability],
        defaults: FitConfig,
        lost: Callable[[int], NDArray[np.bool_]] | None = None,
        *,
        num_workers: int = 0,
        client_gpus: float = 0.0,
        address: str = "",
    ) -> None:
        super().__init__(initial, availability, defaults, lost)
        self.sizes = environment.data.sizes
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(num_workers, address)
        resources = ray.cluster_resources()
        gpus = client_gpus if resources.get("GPU", 0) else 0
        if not num_workers:
            num_workers = int(resources["GPU"] / gpus) if gpus else max(1, int(resources.get("CPU", 1)))
        actor = ray.remote(num_cpus=1, num_gpus=gpus)(RayClients)
        self._start = partial(actor.remote, ray.put(replace(environment, device="cuda" if gpus else "cpu")))
        self._node = ray.get_runtime_context().get_node_id()
        self.shared_rows = SharedRows()
        self.actors = [self._start() for _ in range(num_workers)]
        self._nodes = [actor.node.remote() for actor in self.actors]
        self._local: dict[int, bool] = {}

    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Answers]:
        """Have clients train in all actors at once; yields the answers of each actor when it is done.

        Actors on this machine write their vectors into memory that they share with this process; actors on
        other machines send them as one array.
        """
        work = [job.config.planned_steps(int(self.sizes[job.client])) * job.completion for job in jobs]
        assigned = self._assign(jobs, work)
        local = [worker for worker in assigned if self._is_local(worker)]
        count = sum(len(assigned[worker]) for worker in local)
        lease, rows = self.shared_rows.lend(count, len(broadcast.weights), np.dtype(np.float32))
        sent, start = _put(broadcast), 0
        calls: dict[Any, tuple[int, NDArray[np.float32]]] = {}
        for worker, own in assigned.items():
            actor = self.actors[worker]
            if worker in local:
                part, stop = lease.part(start, len(own)), start + len(own)
                calls[actor.fit_into.remote(sent, [tuple(job) for job in own], part)] = (
                    worker,
                    rows[start:stop],
                )
                start = stop
            else:
                calls[actor.fit_and_send.remote(sent, own)] = (worker, rows[:0])
        return self._answers(calls, assigned)

    def _answers(
        self, calls: dict[Any, tuple[int, NDArray[np.float32]]], assigned: dict[int, list[Job]]
    ) -> Iterator[Answers]:
        """Wait for calls, each given with its worker and with the shared rows that it writes, if any."""
        for call in as_completed(calls):
            worker, rows = calls[call]
            try:
                answers = ray.get(call)
            except RayError as error:
                yield Answers(rows[:0], [], [], self._replace(worker, error, assigned[worker]))
            else:
                if len(rows):
                    answers, (count, width) = answers
                    answers = answers._replace(vectors=rows[:count, :width])
                yield answers

    def store(self, client: int, memory: Memory) -> Any:
        """Store a client's memory in the object store, which spills to disk what does not fit.

        This process owns it, so that it outlives the actor that made it.
        """
        return ray.put(memory)

    def read(self, stored: Any) -> Memory:
        """Return a client's memory, from the object store."""
        return cast(Memory, ray.get(stored))

    def run_evaluation(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Scores]:
        """Have clients evaluate in all actors at once."""
        sent, assigned = _put(broadcast), self._assign(jobs, [1.0] * len(jobs))
        calls = {
            self.actors[worker].evaluate_and_send.remote(sent, own): worker
            for worker, own in assigned.items()
        }
        for call in as_completed(calls):
            try:
                yield ray.get(call)
            except RayError as error:
                worker = calls[call]
                yield Scores([], self._replace(worker, error, assigned[worker]))

    def close(self) -> None:
        """Stop the actors, and Ray if this transport started it."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        self.shared_rows.close()
        if self._owns_ray:
            ray.shutdown()

    def _assign(self, jobs: list[Job], work: list[float]) -> dict[int, list[Job]]:
        """Assign jobs to workers; return the jobs of each worker that has any."""
        assigned = enumerate(assign(work, len(self.actors)))
        return {worker: [jobs[i] for i in positions] for worker, positions in assigned if positions}

    def _is_local(self, worker: int) -> bool:
        """Return whether a worker runs on this machine."""
        if worker not in self._local:
            try:
                self._local[worker] = ray.get(self._nodes[worker]) == self._node
            except RayError:  # it has died; the call to it reports that
                return False
        return self._local[worker]

    def _replace(self, worker: int, error: RayError, own: list[Job]) -> list[Failure]:
        """Replace an actor that failed by a new one; return the failures of its clients."""
        ray.kill(self.actors[worker])
        self.shared_rows.close()  # it may still be writing
        self.actors[worker] = self._start()
        self._nodes[worker] = self.actors[worker].node.remote()
        self._local.pop(worker, None)
        reason = f"worker failed: {type(error).__name__}"
        return [Failure(job.client, reason) for job in own]


def as_completed(calls: Collection[Any]) -> Iterator[Any]:
    """Yield Ray's references in the order in which they become ready."""
    waiting = list(calls)
    while waiting:
        (ready,), waiting = ray.wait(waiting)
        yield ready


def _put(broadcast: Broadcast) -> Any:
    """Put the arrays into the object store; small ones go with each call, which is faster."""
    size = sum(array.nbytes for array in (broadcast.weights, *broadcast.shared))
    return tuple(broadcast) if size <= SMALL else ray.put(tuple(broadcast))
