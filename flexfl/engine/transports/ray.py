"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor a round."""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from torch import nn

from clients.memory.handshake import Memory
from clients.training import Job, planned_steps
from clients.virtual import Answers, Scores, VirtualClients
from flexfl.engine.transports.ray_cluster import start_ray
from flexfl.engine.transports.shared_rows import AttachedRows, Lease, SharedRows
from flexfl.engine.transports.virtual import VirtualTransport
from flexfl.tasks import FederatedData

SMALL = 1 << 16  # bytes; Ray sends arguments of up to 100 kB with the call


def deal(work: list[float], num_workers: int) -> list[list[int]]:
    """Deal jobs to workers, longest first, each to the worker with the least so far.

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
    hands: list[list[int]] = [[] for _ in range(num_workers)]
    loads = [(0.0, worker) for worker in range(num_workers)]
    for position in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        load, worker = heapq.heappop(loads)
        hands[worker].append(position)
        heapq.heappush(loads, (load + work[position], worker))
    return hands


class RayClients(VirtualClients):
    """Virtual clients whose memories lie in Ray's object store."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shared = AttachedRows()
        gc.freeze()  # or the garbage collector would search all of torch again and again

    def node(self) -> str:
        """Return the machine that this worker runs on, as Ray names it."""
        return cast(str, ray.get_runtime_context().get_node_id())

    def fit_into(
        self, weights: NDArray[Any], jobs: list[tuple[Any, ...]], lease: Lease
    ) -> tuple[Answers, tuple[int, ...]]:
        """Train into memory that the driver shares; the answers without vectors, and the shape of these.

        The jobs come as plain tuples, which Ray serialises in half the time.
        """
        answers = self.fit(weights, [Job(*job) for job in jobs], self.shared.open(lease))
        return answers._replace(vectors=np.empty((0, 0), np.float32)), answers.vectors.shape

    def recall(self, memory: Any) -> Memory | None:
        """Fetch what a client remembers, for as long as it trains."""
        return None if memory is None else cast(Memory, ray.get(memory))


class RayTransport(VirtualTransport):
    """Plays the clients in Ray actors, which keep the data and one model each.

    An actor that dies is a named failure of its clients in that round; a new one takes its place.

    Parameters
    ----------
    player
        Arguments of `VirtualClients` up to the seed; the data are shared by all actors of a machine without
        a copy.
    cohort
        The last arguments of `VirtualClients`.
    num_workers
        Number of actors; 0: one for each share of a GPU, or for each CPU core where there is no GPU.
    client_gpus
        Share of a GPU for each actor; 0 trains on the CPU.
    address
        Of a Ray cluster that is running; empty: start Ray on this machine.
    initial, availability, defaults, lost
        See `VirtualTransport`.
    """

    def __init__(
        self,
        player: tuple[FederatedData, Callable[[], nn.Module], int],
        cohort: tuple[str, int],
        num_workers: int,
        client_gpus: float,
        address: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        data, *others = player
        self.sizes = data.sizes
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(num_workers, address)
        resources = ray.cluster_resources()
        gpus = client_gpus if resources.get("GPU", 0) else 0
        if not num_workers:
            num_workers = int(resources["GPU"] / gpus) if gpus else max(1, int(resources.get("CPU", 1)))
        actor = ray.remote(num_cpus=1, num_gpus=gpus)(RayClients)
        self._start = partial(actor.remote, ray.put(data), *others, "cuda" if gpus else "cpu", *cohort)
        self._node = ray.get_runtime_context().get_node_id()
        self.shared = SharedRows()
        self.actors = [self._start() for _ in range(num_workers)]
        self._nodes = [actor.node.remote() for actor in self.actors]
        self._here: dict[int, bool] = {}

    def run(self, weights: NDArray[Any], jobs: list[Job]) -> Iterator[Answers]:
        """Have the jobs done by all actors at once; the answers of each as soon as they are there.

        Actors of this machine train in memory that this process shares with them; those of others send
        their vectors as one array.
        """
        work = [planned_steps(job.config, int(self.sizes[job.client])) * job.completion for job in jobs]
        hands = self._deal(jobs, work)
        here = [worker for worker in hands if self._is_here(worker)]
        shared = sum(len(hands[worker]) for worker in here)
        lease, rows = self.shared.lend(shared, len(weights), np.dtype(np.float32))
        broadcast, start, calls = _broadcast(weights), 0, {}
        for worker, hand in hands.items():
            actor = self.actors[worker]
            if worker in here:
                part = lease.part(start, len(hand))
                calls[actor.fit_into.remote(broadcast, [tuple(job) for job in hand], part)] = (
                    worker,
                    rows[start : start + len(hand)],
                )
                start += len(hand)
            else:
                calls[actor.fit.remote(broadcast, hand)] = (worker, rows[:0])
        return self._answers(calls, hands)

    def _answers(
        self, calls: dict[Any, tuple[int, NDArray[np.float32]]], hands: dict[int, list[Job]]
    ) -> Iterator[Answers]:
        """Wait for calls; each comes with its worker and the rows that it writes to, if it does."""
        for call in as_completed(calls):
            worker, rows = calls[call]
            try:
                found = ray.get(call)
            except RayError as error:
                yield Answers(rows[:0], [], [], self._replace(worker, error, hands[worker]))
            else:
                if len(rows):
                    found, (count, width) = found
                    found = found._replace(vectors=rows[:count, :width])
                yield found

    def keep(self, client: int, memory: Memory) -> Any:
        """Put away what a client remembers: in the object store, which moves to disk what does not fit.

        It belongs to this process, so that it survives the actor that made it.
        """
        return ray.put(memory)

    def run_evaluation(self, weights: NDArray[Any], jobs: list[Job]) -> Iterator[Scores]:
        """Have clients evaluate, by all actors at once."""
        broadcast, hands = _broadcast(weights), self._deal(jobs, [1.0] * len(jobs))
        calls = {
            self.actors[worker].evaluate.remote(broadcast, hand): worker for worker, hand in hands.items()
        }
        for call in as_completed(calls):
            try:
                yield ray.get(call)
            except RayError as error:
                worker = calls[call]
                yield Scores([], self._replace(worker, error, hands[worker]))

    def close(self) -> None:
        """End the actors, and Ray if this transport started it."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        self.shared.close()
        if self._owns_ray:
            ray.shutdown()

    def _deal(self, jobs: list[Job], work: list[float]) -> dict[int, list[Job]]:
        """Return the jobs of each worker that gets some."""
        hands = enumerate(deal(work, len(self.actors)))
        return {worker: [jobs[i] for i in hand] for worker, hand in hands if hand}

    def _is_here(self, worker: int) -> bool:
        """Whether an actor runs on this machine."""
        if worker not in self._here:
            try:
                self._here[worker] = ray.get(self._nodes[worker]) == self._node
            except RayError:  # it has died; its clients will hear of it
                return False
        return self._here[worker]

    def _replace(self, worker: int, error: RayError, hand: list[Job]) -> list[tuple[int, str]]:
        """Start a new actor in the place of one that failed; returns what happened to its clients."""
        ray.kill(self.actors[worker])
        self.shared.close()  # it may still be writing
        self.actors[worker] = self._start()
        self._nodes[worker] = self.actors[worker].node.remote()
        self._here.pop(worker, None)
        reason = f"worker failed: {type(error).__name__}"
        return [(job.client, reason) for job in hand]


def as_completed(calls: Collection[Any]) -> Iterator[Any]:
    """Yield Ray's references in the order in which they get ready."""
    waiting = list(calls)
    while waiting:
        (ready,), waiting = ray.wait(waiting)
        yield ready


def _broadcast(weights: NDArray[Any]) -> Any:
    """Put weights into the object store once; small ones are sent with each call, which is faster."""
    return weights if weights.nbytes <= SMALL else ray.put(weights)
