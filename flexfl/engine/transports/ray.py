"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor a round."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
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
from flexfl.engine.transports.ray_cluster import start_ray
from flexfl.engine.transports.shared_rows import AttachedRows, Lease, SharedRows
from flexfl.engine.transports.virtual import VirtualTransport
from strategies import FlatParameters
from traces import RoundAvailability

SMALL = 1 << 16  # bytes; Ray sends arguments of up to 100 kB with the call


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
    """Virtual clients whose memories lie in Ray's object store."""

    def __init__(self, environment: ClientEnvironment) -> None:
        super().__init__(environment)
        self.shared_rows = AttachedRows()
        gc.freeze()  # or the garbage collector would search all of torch again and again

    def node(self) -> str:
        """Return the machine that this worker runs on, as Ray names it."""
        return cast(str, ray.get_runtime_context().get_node_id())

    def fit_into(
        self, broadcast: tuple[Any, ...], jobs: list[tuple[Any, ...]], lease: Lease
    ) -> tuple[Answers, tuple[int, ...]]:
        """Train into memory that the driver shares; the answers without vectors, and the shape of these.

        Broadcast and jobs come as plain tuples, which Ray serialises in half the time.
        """
        rows = self.shared_rows.open(lease)
        answers = self.fit(Broadcast(*broadcast), [Job(*job) for job in jobs], rows)
        return answers._replace(vectors=np.empty((0, 0), np.float32)), answers.vectors.shape

    def fit_and_send(self, broadcast: tuple[Any, ...], jobs: list[Job]) -> Answers:
        """Train; the answers with their vectors, for a driver on another machine."""
        return self.fit(Broadcast(*broadcast), jobs)

    def evaluate_and_send(self, broadcast: tuple[Any, ...], jobs: list[Job]) -> Scores:
        """Evaluate."""
        return self.evaluate(Broadcast(*broadcast), jobs)

    def load(self, memory: Any) -> Memory | None:
        """Fetch what a client remembers, for as long as it trains."""
        return None if memory is None else cast(Memory, ray.get(memory))


class RayTransport(VirtualTransport):
    """Simulates the clients in Ray actors, each of which keeps the data and one model.

    An actor that dies is a named failure of its clients in that round; a new one takes its place.

    Parameters
    ----------
    environment
        The clients' data and model; all actors of a machine share the data without a copy.
    initial, availability, defaults, lost
        See `VirtualTransport`.
    num_workers
        Number of actors; 0: one for each share of a GPU, or for each CPU core where there is no GPU.
    client_gpus
        Share of a GPU for each actor; 0 trains on the CPU.
    address
        Of a Ray cluster that is running; empty: start Ray on this machine.
    """

    def __init__(
        self,
        environment: ClientEnvironment,
        initial: FlatParameters,
        availability: Callable[[int], RoundAvailability],
        defaults: Mapping[str, Any],
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
        self._here: dict[int, bool] = {}

    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Answers]:
        """Have clients train in all actors at once; the answers of each as soon as they are there.

        Actors of this machine train in memory that this process shares with them; those of others send
        their vectors as one array.
        """
        work = [job.config.planned_steps(int(self.sizes[job.client])) * job.completion for job in jobs]
        assigned = self._assign(jobs, work)
        here = [worker for worker in assigned if self._is_here(worker)]
        count = sum(len(assigned[worker]) for worker in here)
        lease, rows = self.shared_rows.lend(count, len(broadcast.weights), np.dtype(np.float32))
        sent, start = _put(broadcast), 0
        calls: dict[Any, tuple[int, NDArray[np.float32]]] = {}
        for worker, own in assigned.items():
            actor = self.actors[worker]
            if worker in here:
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
        """Wait for calls; each comes with its worker and the rows that it writes to, if it does."""
        for call in as_completed(calls):
            worker, rows = calls[call]
            try:
                found = ray.get(call)
            except RayError as error:
                yield Answers(rows[:0], [], self._replace(worker, error, assigned[worker]))
            else:
                if len(rows):
                    found, (count, width) = found
                    found = found._replace(vectors=rows[:count, :width])
                yield found

    def store(self, client: int, memory: Memory) -> Any:
        """Store what a client remembers in the object store, which moves to disk what does not fit.

        It belongs to this process, so that it survives the actor that made it.
        """
        return ray.put(memory)

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
        """End the actors, and Ray if this transport started it."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        self.shared_rows.close()
        if self._owns_ray:
            ray.shutdown()

    def _assign(self, jobs: list[Job], work: list[float]) -> dict[int, list[Job]]:
        """Return the jobs of each worker that gets some."""
        assigned = enumerate(assign(work, len(self.actors)))
        return {worker: [jobs[i] for i in own] for worker, own in assigned if own}

    def _is_here(self, worker: int) -> bool:
        """Whether an actor runs on this machine."""
        if worker not in self._here:
            try:
                self._here[worker] = ray.get(self._nodes[worker]) == self._node
            except RayError:  # it has died, as its clients' failures will say
                return False
        return self._here[worker]

    def _replace(self, worker: int, error: RayError, own: list[Job]) -> list[Failure]:
        """Start a new actor in the place of one that failed; returns what happened to its clients."""
        ray.kill(self.actors[worker])
        self.shared_rows.close()  # it may still be writing
        self.actors[worker] = self._start()
        self._nodes[worker] = self.actors[worker].node.remote()
        self._here.pop(worker, None)
        reason = f"worker failed: {type(error).__name__}"
        return [Failure(job.client, reason) for job in own]


def as_completed(calls: Collection[Any]) -> Iterator[Any]:
    """Yield Ray's references in the order in which they get ready."""
    waiting = list(calls)
    while waiting:
        (ready,), waiting = ray.wait(waiting)
        yield ready


def _put(broadcast: Broadcast) -> Any:
    """Put arrays into the object store once; small ones are sent with each call, which is faster."""
    size = sum(array.nbytes for array in (broadcast.weights, *broadcast.shared))
    return tuple(broadcast) if size <= SMALL else ray.put(tuple(broadcast))
