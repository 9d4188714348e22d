"""The calls of one round: the clients of a failed worker are asked again, until the cause is found.

Ray could repeat calls itself (`max_task_retries`), but only with all clients of a call, on the same actor.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from clients.simulated.faults import described
from clients.simulated.jobs import Job
from clients.simulated.virtual import Failure
from fedtide.engine.transports.ray.liveness import engine_lost
from fedtide.engine.transports.ray.workers import OUT_OF_MEMORY, Worker, Workers
from fedtide.ground.wording import count

GRACE = 10.0  # seconds beyond its time limit that a worker gets to end itself


class Part(NamedTuple):
    """Clients that one worker simulates in one call."""

    jobs: list[Job]
    attempt: int = 0  # 0: together; 1: together once more; 2: one client alone; 3: alone for the last time
    at: int | None = None  # where its rows begin in the memory that is shared with workers, if it has any


ALONE, LAST = 2, 3


class _Call(NamedTuple):
    """A call that has not ended, and when it started."""

    worker: Worker
    part: Part
    since: float


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
        submit: Callable[[Worker, Part], Any],  # calls a worker and returns Ray's reference
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

    def __iter__(self) -> Iterator[tuple[Part, Any]]:
        """Yield parts as they end, each with the result of its call, or with the `Failure` of its client."""
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
            part = queue.popleft()
            self._running[self._submit(worker, part)] = _Call(worker, part, time.monotonic())

    def _overdue(self) -> list[Any]:
        """Return calls whose worker should have ended itself by now: a signal may have stopped it."""
        return [
            reference
            for reference, (_, part, since) in self._running.items()
            if self._timeout and time.monotonic() - since > self._timeout * len(part.jobs) + GRACE
        ]

    def _end(self, reference: Any, overdue: bool = False) -> tuple[Part, Any] | None:
        """Return what a call has returned; None if its clients will be asked again."""
        call = self._running.pop(reference)
        hangs, reason = overdue, "its process died"
        try:
            if not overdue:
                return call.part, self._workers.get(reference)
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

    def _again(self, part: Part, reason: str, hangs: bool) -> tuple[Part, Failure] | None:
        """Queue the clients of a part that failed; one that failed alone twice is a failure."""
        if part.attempt == LAST:
            client = part.jobs[0].client
            self._suspects.add(client)
            return part, Failure(client, reason)
        together = part.attempt == 0 and len(part.jobs) > 1 and not hangs
        if together:
            self._together.append(Part(part.jobs, 1))
        else:
            attempt = LAST if part.attempt == ALONE else ALONE
            self._alone.extendleft(Part([job], attempt) for job in reversed(part.jobs))
        how = "together" if together else "alone"
        self._failed(f"{count(len(part.jobs), 'client')} of one worker: {reason}; asked once more, {how}")
        return None
