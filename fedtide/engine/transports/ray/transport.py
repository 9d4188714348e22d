"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor and round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from clients.memory.handshake import Memory
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers, Failure, Scores
from fedtide.base.contract import REPORTED
from fedtide.base.spill import let_go
from fedtide.base.wording import count
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.actor import (
    RayClients,
    Sent,
    pack_broadcast,
    pack_jobs,
    unpack_answers,
)
from fedtide.engine.transports.ray.calls import LAST, Calls, Part, Submit, divide
from fedtide.engine.transports.ray.cluster import imports, start_ray
from fedtide.engine.transports.ray.liveness import PATIENCE, Liveness, engine_lost
from fedtide.engine.transports.ray.remote_vectors import VectorsOnNodes
from fedtide.engine.transports.ray.shared_rows import POSSIBLE, SharedRows
from fedtide.engine.transports.ray.workers import Worker, Workers
from fedtide.engine.transports.virtual import Simulation, VirtualTransport

SMALL = 1 << 16  # bytes; Ray sends arguments of up to 100 kB together with the call
KEPT = 1 << 20  # bytes; smaller vectors are sent at once: an object costs Ray as long as sending so much
PART = 1 << 28  # bytes of the vectors of one call on a cluster, unless one client's are more


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
            """Return the number of workers for which there are a core and a share of a GPU each."""
            if self._nodes:
                self._nodes.check()
            there = self._nodes.resources if self._nodes else resources
            cores = int(there.get("CPU", 1))
            room = max(1, min(cores, int(there.get("GPU", 0) / gpus)) if gpus else cores)
            if num_workers > room:
                tell_once(f"Ray has room for {count(room, 'worker')}, not {num_workers}")
            return min(num_workers or room, room)

        tell_once = cache(tell)
        own = {} if self._own else {"runtime_env": imports()}
        actor = ray.remote(num_cpus=1, num_gpus=gpus, **own)(RayClients)
        start = partial(actor.remote, ray.put(replace(environment, device="cuda" if gpus else "cpu")))
        self.shared_rows = SharedRows()
        self._liveness = Liveness(PATIENCE if address else 0.0, tell)
        self.workers = Workers(start, wanted, self._liveness, tell)
        self._timeout = environment.timeout
        self._suspects: set[int] = set()  # clients that have made a worker fail
        self._remote: VectorsOnNodes | None = None  # of the last round
        self._all_sent = False

    def is_stuck(self) -> bool:
        return not self.workers.ready

    def run(self, broadcast: Broadcast, jobs: list[Job]) -> Iterator[Answers]:
        """Yield the answers of each call when it is done.

        Actors on this machine write their vectors into memory that they share with this process. Those of
        other machines stay there, see `VectorsOnNodes`, or are sent as one array, as they are after a fault.
        """
        parts = self._parts(jobs, self._work(jobs), broadcast.weights.nbytes)
        sent = self._put(broadcast)
        remote = self._remote = self._vectors_on_nodes(broadcast, sent, jobs)
        here = 0
        for k, part in enumerate(parts):
            if POSSIBLE and part.attempt != LAST and (remote is None or part.node == self.workers.node):
                parts[k] = part._replace(at=here)
                here += len(part.jobs)
        try:
            lease, rows = self.shared_rows.lend(here, len(broadcast.weights))
        except OSError as error:
            raise EngineLost(f"no room for the updates of {here} clients: {error}; set TMPDIR") from error

        def submit(worker: Worker, part: Part) -> list[Any]:
            jobs = pack_jobs(part.jobs)
            if part.at is not None and worker.local:
                own = lease.part(part.at, len(part.jobs))
                return [worker.actor.fit_and_send.remote(sent, jobs, [*own])]
            if remote is None:
                return [worker.actor.fit_and_send.remote(sent, jobs)]
            call = worker.actor.fit_and_keep.options(num_returns=1 + len(part.jobs))
            return cast(list[Any], call.remote(sent, jobs))

        return self._answers(self._calls(parts, submit), rows, remote)

    def _answers(
        self, calls: Calls, rows: NDArray[np.float32], remote: VectorsOnNodes | None
    ) -> Iterator[Answers]:
        """Wait for calls that write to shared rows, return their vectors, or leave them where they are."""
        for part, result, references, node in calls:
            if isinstance(result, Failure):
                yield Answers(rows[:0], np.empty(0, REPORTED), failures=[result])
            elif remote and references:
                packed, stay = result
                answers = unpack_answers(packed)
                yield remote.add(part.jobs, answers, references, node) if stay else answers
            else:
                yield unpack_answers(result, None if part.at is None else rows[part.at :])

    def _vectors_on_nodes(
        self, broadcast: Broadcast, sent: Sent, jobs: Sequence[Job]
    ) -> VectorsOnNodes | None:
        """Return a record of the vectors that stay on other machines; None: all are sent at once.

        They are sent after a round in which most were read, because fetching them takes longer.
        """
        self._all_sent |= self._remote is not None and self._remote.most_were_read
        small, near = broadcast.weights.nbytes < KEPT, all(worker.local for worker in self.workers.ready)
        if small or near or self._all_sent or any(job.weights is not None for job in jobs):
            return None
        return VectorsOnNodes(self.workers, broadcast.weights, sent, partial(self._train_again, sent))

    def _train_again(self, sent: Sent, jobs: list[Job], rows: Mapping[int, NDArray[np.float32]]) -> None:
        """Train clients whose vectors were lost with their machine, into rows that are given by client."""
        self._failed(f"{count(len(jobs), 'client')} of one machine: it was lost; trained once more")

        def submit(worker: Worker, part: Part) -> list[Any]:
            return [worker.actor.fit_and_send.remote(sent, pack_jobs(part.jobs))]

        size = next(iter(rows.values())).nbytes
        for ended in self._calls(self._parts(jobs, self._work(jobs), size), submit):
            answers = None if isinstance(ended.result, Failure) else unpack_answers(ended.result)
            if answers is None or answers.failures:
                raise EngineLost("a machine was lost, and a client of it cannot be trained again")
            clients = answers.reported["client"].tolist()
            for client, vector in zip(clients, answers.vectors, strict=True):
                rows[client][:] = vector
                let_go(rows[client])

    def _work(self, jobs: list[Job]) -> list[float]:
        return [job.config.planned_steps(int(self.sizes[job.client])) * job.completion for job in jobs]

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

        def submit(worker: Worker, part: Part) -> list[Any]:
            return [worker.actor.evaluate_and_send.remote(sent, pack_jobs(part.jobs))]

        for ended in self._calls(self._parts(jobs, [1.0] * len(jobs)), submit):
            yield Scores([], [ended.result]) if isinstance(ended.result, Failure) else ended.result

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
        usual = [i for i, job in enumerate(jobs) if job.client not in self._suspects]
        parts = divide(
            [jobs[i] for i in usual], [work[i] for i in usual], self.workers.ready, max(1, PART // size)
        )
        return parts + [Part([job], LAST) for job in jobs if job.client in self._suspects]

    def _calls(self, parts: list[Part], submit: Submit) -> Calls:
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
