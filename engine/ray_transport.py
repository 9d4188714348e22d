"""Virtual clients in Ray actors: one broadcast of the weights and one call per actor a round."""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from torch import nn

from clients.training import planned_steps
from clients.virtual import Answers, Job, VirtualClients
from engine.virtual_transport import VirtualTransport
from tasks import FederatedData

ROOT = str(Path(__file__).parents[1])


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


class RayTransport(VirtualTransport):
    """Plays the clients in Ray actors, which keep the data and one model each.

    An actor that dies is a named failure of its clients in that round; Ray starts it anew for the next.

    Parameters
    ----------
    data, build, seed
        See `VirtualClients`; the data are shared by all actors of a machine without a copy.
    num_workers
        Number of actors; 0: one for each share of a GPU, or for each CPU core where there is no GPU.
    client_gpus
        Share of a GPU for each actor; 0 trains on the CPU.
    initial, availability, defaults
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
        actor = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1)(VirtualClients)
        device = "cuda" if gpus else "cpu"
        shared = ray.put(data)
        self.actors = [actor.remote(shared, build, seed, device) for _ in range(num_workers)]

    def run(self, weights: NDArray[Any], jobs: list[Job]) -> list[Answers]:
        """Have the jobs done by all actors at once."""
        broadcast = ray.put(weights)
        work = [planned_steps(job.config, int(self.sizes[job.client])) * job.completion for job in jobs]
        hands = [[jobs[i] for i in hand] for hand in deal(work, len(self.actors))]
        calls = [
            (actor.fit.remote(broadcast, hand), hand)
            for actor, hand in zip(self.actors, hands, strict=True)
            if hand
        ]
        return [self._fetch(call, hand, len(weights)) for call, hand in calls]

    def run_evaluation(self, weights: NDArray[Any], client: int) -> tuple[float, int, float]:
        """Loss, number of examples and accuracy of these weights on one client's hold-out."""
        actor = self.actors[client % len(self.actors)]
        result: tuple[float, int, float] = ray.get(actor.evaluate.remote(weights, client))
        return result

    def close(self) -> None:
        """End the actors, and Ray if this transport started it."""
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        if self._owns_ray:
            ray.shutdown()

    @staticmethod
    def _fetch(call: Any, hand: list[Job], num_weights: int) -> Answers:
        try:
            answers: Answers = ray.get(call)
        except RayError as error:
            reason = f"worker failed: {type(error).__name__}"
            return Answers(np.empty((0, num_weights), np.float32), [], [(j.client, reason) for j in hand])
        return answers


def start_ray(num_workers: int) -> None:
    """Start Ray on this machine, quietly, with room for `num_workers` actors (0: one a CPU core)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    paths = [ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    ray.init(
        num_cpus=max(num_workers, os.cpu_count() or 1) if num_workers else None,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
    )
