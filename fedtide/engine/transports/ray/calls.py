"""The calls of one round: each worker simulates some clients, and those of a failed worker are asked again.

Ray could repeat calls itself (`max_task_retries`), but only with all clients of a call, on the same actor.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from clients.simulated.jobs import Job
from clients.simulated.virtual import Failure
from fedtide.base.errors import described
from fedtide.base.wording import count
from fedtide.engine.transports.ray.liveness import engine_lost
from fedtide.engine.transports.ray.workers import OUT_OF_MEMORY, Worker, Workers

GRACE = 10.0  # seconds beyond its time limit that a worker gets to end itself
ALONE, LAST = 2, 3


class Part(NamedTuple):
    """Clients that one worker simulates in one call."""

    jobs: list[Job]
    attempt: int = 0  # 0: together; 1: together once more; 2: one client alone; 3: alone for the last time
    at: int | None = None  # where its rows begin in the memory that is shared with workers, if it has any
    node: str = ""  # whose workers take it first; any


Submit = Callable[[Worker, Part], list[Any]]
"""Calls a worker and returns Ray's references: to the result, and to vectors that stay where they are."""


class _Call(NamedTuple):
    """A call that has not ended, references to the vectors that it leaves, and when it started."""

    worker: Worker
    part: Part
    vectors: list[Any]
    since: float


class Ended(NamedTuple):
    """A call that has ended: what it returned, or the `Failure` of its only client."""

    part: Part
    result: Any
    vectors: Sequence[Any] = ()
    node: str = ""  # where it ran


class Calls:
    """Distributes parts among the workers that are ready; iterating waits for the results.

    The clients of a worker that fails go together to the next free worker; if that fails as well, they are
    asked one by one. A client that fails twice alone is the cause, and a failure of the round; a single
    failure may have had another cause.
    """

    def __init__(
        self,
        workers: Workers,
        parts: Sequence[Part],
        submit: Submit,
        suspects: set[int],  # clients that have made a worker fail; further ones are added
        timeout: float,  # see the setting `client_timeout`
        failed: Callable[[str], None],  # called when clients are asked again, with a sentence for the user
    ) -> None:
        self._workers, self._submit, self._timeout = workers, submit, timeout
        self._suspects, self._failed = suspects, failed
        self._running: dict[Any, _Call] = {}
        self._together = deque(part for part in parts if part.attempt != LAST)
        self._alone = deque(part for part in parts if part.attempt == LAST)
        self._fill()

    def __iter__(self) -> Iterator[Ended]:
        """Yield calls as they end; a part that failed is in none until its clients have been asked again."""
        while self._running or self._together or self._alone:
            ended = [self._end(call) for call in self._workers.wait(self._running)]
            ended += [self._end(call, overdue=True) for call in self._overdue()]
            self._fill()
            yield from (one for one in ended if one is not None)

    def _fill(self) -> None:
        """Give the next parts to workers that have none."""
        busy = {call.worker for call in self._running.values()}
        for worker in [worker for worker in self._workers.ready if worker not in busy]:
            queue = self._together or self._alone
            if not queue:
                return
            own = (k for k, part in enumerate(queue) if part.node in ("", worker.node))
            at = next(own, -1)  # those of another node from the end, which its workers would reach last
            part = queue[at]
            del queue[at]
            reference, *vectors = self._submit(worker, part)
            self._running[reference] = _Call(worker, part, vectors, time.monotonic())

    def _overdue(self) -> list[Any]:
        """Return calls whose worker should have ended itself by now: a signal may have stopped it."""
        return [
            reference
            for reference, call in self._running.items()
            if self._timeout and time.monotonic() - call.since > self._timeout * len(call.part.jobs) + GRACE
        ]

    def _end(self, reference: Any, overdue: bool = False) -> Ended | None:
        """Return the result of a call; None if its clients will be asked again."""
        call = self._running.pop(reference)
        hangs, reason = overdue, "its process died"
        try:
            if not overdue:
                return Ended(call.part, self._workers.get(reference), call.vectors, call.worker.node)
        except RayError as error:
            if lost := engine_lost(error):
                raise lost from error
            if isinstance(error, RayTaskError):  # the worker is well
                return self._again(call.part, described(error.cause or error), False)
            hangs = bool(self._timeout) and time.monotonic() - call.since >= self._timeout
            if isinstance(error, OutOfMemoryError):
                reason += f": {OUT_OF_MEMORY}"
        reason = f"no result within {self._timeout:g} s" if hangs else reason
        self._workers.replace(call.worker, reason)
        return self._again(call.part, reason, hangs)

    def _again(self, part: Part, reason: str, hangs: bool) -> Ended | None:
        """Queue the clients of a part that failed; one that failed alone twice is a failure."""
        if part.attempt == LAST:
            client = part.jobs[0].client
            self._suspects.add(client)
            return Ended(part, Failure(client, reason))
        together = part.attempt == 0 and len(part.jobs) > 1 and not hangs
        if together:
            self._together.append(Part(part.jobs, 1))
        else:
            attempt = LAST if part.attempt == ALONE else ALONE
            self._alone.extendleft(Part([job], attempt) for job in reversed(part.jobs))
        how = "together" if together else "alone"
        self._failed(f"{count(len(part.jobs), 'client')} of one worker: {reason}; asked once more, {how}")
        return None


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
