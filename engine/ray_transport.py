"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor a round."""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from torch import nn

from clients.memory import Memory
from clients.training import planned_steps
from clients.virtual import Answers, Job, Scores, VirtualClients
from engine.virtual_transport import VirtualTransport
from tasks import FederatedData

ROOT = str(Path(__file__).parents[1])
Result = TypeVar("Result", Answers, Scores)


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

    def recall(self, memory: Any) -> Memory | None:
        """Fetch what a client remembers, for as long as it trains."""
        return None if memory is None else cast(Memory, ray.get(memory))


class RayTransport(VirtualTransport):
    """Plays the clients in Ray actors, which keep the data and one model each.

    An actor that dies is a named failure of its clients in that round; a new one takes its place.

    Parameters
    ----------
    data, build, seed
        See `VirtualClients`; the data are shared by all actors of a machine without a copy.
    num_workers
        Number of actors; 0: one for each share of a GPU, or for each CPU core where there is no GPU.
    client_gpus
        Share of a GPU for each actor; 0 trains on the CPU.
    initial, availability, defaults, lost
        See `VirtualTransport`.
    """

    def __init__(
        self,
        data: FederatedData,
        build: Callable[[], nn.Module],
        seed: int,
        num_workers: int,
        client_gpus: float,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sizes = data.sizes
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            start_ray(num_workers)
        resources = ray.cluster_resources()
        gpus = client_gpus if resources.get("GPU", 0) else 0
        if not num_workers:
            num_workers = int(resources["GPU"] / gpus) if gpus else max(1, int(resources.get("CPU", 1)))
        actor = ray.remote(num_cpus=1, num_gpus=gpus)(RayClients)
        self._start = partial(actor.remote, ray.put(data), build, seed, "cuda" if gpus else "cpu")
        self.actors = [self._start() for _ in range(num_workers)]

    def run(self, weights: NDArray[Any], jobs: list[Job]) -> list[Answers]:
        """Have the jobs done by all actors at once."""
        work = [planned_steps(job.config, int(self.sizes[job.client])) * job.completion for job in jobs]
        nothing = np.empty((0, len(weights)), np.float32)
        return self._share("fit", weights, jobs, work, lambda failed: Answers(nothing, [], [], failed))

    def keep(self, memory: Memory) -> Any:
        """Put away what a client remembers: in the object store, which moves to disk what does not fit.

        It belongs to this process, so that it survives the actor that made it.
        """
        return ray.put(memory)

    def run_evaluation(self, weights: NDArray[Any], jobs: list[Job]) -> list[Scores]:
        """Have clients evaluate, by all actors at once."""
        return self._share("evaluate", weights, jobs, [1.0] * len(jobs), lambda failed: Scores([], failed))

    def close(self) -> None:
        """End the actors, and Ray if this transport started it."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        if self._owns_ray:
            ray.shutdown()

    def _share(
        self,
        method: str,
        weights: NDArray[Any],
        jobs: list[Job],
        work: list[float],
        failed: Callable[[list[tuple[int, str]]], Result],
    ) -> list[Result]:
        """Call a method of all actors, each with its share of the jobs; one that dies has `failed`."""
        broadcast = ray.put(weights)
        hands = [[jobs[i] for i in hand] for hand in deal(work, len(self.actors))]
        calls = [
            (worker, getattr(self.actors[worker], method).remote(broadcast, hand), hand)
            for worker, hand in enumerate(hands)
            if hand
        ]
        results: list[Result] = []
        for worker, call, hand in calls:
            try:
                results.append(ray.get(call))
            except RayError as error:
                reason = self._replace(worker, error)
                results.append(failed([(job.client, reason) for job in hand]))
        return results

    def _replace(self, worker: int, error: RayError) -> str:
        """Start a new actor in the place of one that failed; returns what happened, in words."""
        ray.kill(self.actors[worker])
        self.actors[worker] = self._start()
        return f"worker failed: {type(error).__name__}"


def start_ray(num_workers: int) -> None:
    """Start Ray on this machine, quietly, with room for `num_workers` actors (0: one a CPU core)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's next default; else it warns
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        num_cpus=max(num_workers, os.cpu_count() or 1) if num_workers else None,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    )
