"""Jobs and answers as bytes: one object for each client would take Ray several times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import Answers
from fedtide.ground.contract import REPORTED

Packed = list[Any]
Sent = Packed | tuple[Any, ...]


def pack_broadcast(broadcast: Broadcast) -> Packed:
    """Return the arrays that all clients of a round receive, as bytes."""
    return [[array.dtype.str, array.tobytes()] for array in (broadcast.weights, *broadcast.shared)]


def unpack_broadcast(sent: Sent) -> Broadcast:
    """Return the broadcast that `pack_broadcast` was given, or a tuple from Ray's object store."""
    if isinstance(sent, tuple):
        return Broadcast(*sent)
    weights, *shared = (np.frombuffer(data, dtype) for dtype, data in sent)
    return Broadcast(weights, tuple(shared))


def pack_jobs(jobs: Sequence[Job]) -> Packed:
    """Return jobs, at least one; those that differ only in the client and its completion take 16 bytes."""
    common = jobs[0].config
    numbers = np.array([(job.client, job.completion) for job in jobs], np.float64)
    own = {k: tuple(job) for k, job in enumerate(jobs) if job.config is not common or _has_own(job)}
    return [common, numbers.tobytes(), own]


def unpack_jobs(packed: Packed) -> list[Job]:
    """Return the jobs that `pack_jobs` was given."""
    common, numbers, own = packed
    pairs = np.frombuffer(numbers).reshape(-1, 2).tolist()
    jobs = [Job(int(client), (), common, completion) for client, completion in pairs]
    for k, job in own.items():
        jobs[k] = Job(*job)
    return jobs


def count_jobs(packed: Packed) -> int:
    """Return how many jobs `pack_jobs` was given."""
    return len(packed[1]) // 16


def _has_own(job: Job) -> bool:
    return bool(len(job.arrays)) or any(value is not None for value in job[4:])


def pack_answers(answers: Answers) -> Packed:
    """Return answers without their vectors, and the vectors' shape."""
    own = [answers.extra, answers.memories] if answers.extra or answers.memories else None
    rest = [answers.farewells, answers.failures, answers.notes]
    return [
        [answers.reported.tobytes(), *answers.vectors.shape, answers.seconds],
        own,
        rest if any(rest) else None,
    ]


def unpack_answers(packed: Packed, rows: Any) -> Answers:
    """Return answers, given the memory that has their vectors."""
    (reported, count, width, seconds), own, rest = packed
    extra, memories = own or ((), ())
    farewells, failures, notes = rest or ({}, (), ())
    numbers = np.frombuffer(reported, REPORTED)
    return Answers(rows[:count, :width], numbers, extra, memories, farewells, failures, notes, seconds)
