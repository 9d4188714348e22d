"""Which clients each worker simulates, and in how many calls."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clients.simulated.jobs import Job
from fedtide.engine.transports.ray.workers import Worker


class Part(NamedTuple):
    """Clients that one worker simulates in one call."""

    jobs: list[Job]
    attempt: int = 0  # 0: together; 1: together once more; 2: one client alone; 3: alone for the last time
    at: int | None = None  # where its rows begin in the memory that is shared with workers, if it has any
    node: str = ""  # whose workers take it first; any


ALONE, LAST = 2, 3


def divide(jobs: Sequence[Job], work: Sequence[float], workers: Sequence[Worker], most: int) -> list[Part]:
    """Divide jobs among workers; on a cluster, in parts of at most so many.

    There, a worker gets clients that follow each other, and so do the workers of a node: a sum goes through
    clients in ascending order, and few of its blocks need vectors of two nodes. `work` is the expected
    duration of each job.
    """
    if all(worker.local for worker in workers):
        assigned, most = assign(work, len(workers)), max(1, len(jobs))
    else:
        workers = sorted(workers, key=lambda worker: (not worker.local, worker.node))
        assigned = ranges(np.array([job.client for job in jobs]), work, len(workers))
    return [
        Part([jobs[i] for i in own[first : first + most]], node=worker.node)
        for worker, own in zip(workers, assigned, strict=True)
        for first in range(0, len(own), most)
    ]


def assign(work: Sequence[float], num_workers: int) -> list[list[int]]:
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


def ranges(clients: np.ndarray, work: Sequence[float], num_workers: int) -> list[list[int]]:
    """Assign to each worker clients that follow each other, with about the same work.

    Returns the positions of each worker's clients.
    """
    order = np.argsort(clients)
    own = np.array(work)[order]
    middle = np.cumsum(own) - own / 2  # of each client's work, counted from the first
    share = middle / max(own.sum(), 1e-9) * num_workers
    worker = np.minimum(share.astype(np.intp), num_workers - 1)
    return [order[worker == k].tolist() for k in range(num_workers)]
