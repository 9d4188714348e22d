"""The Ray actors of a transport: which are ready, and a new one for each that has failed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from flexfl.engine.transports.base import EngineLost
from flexfl.engine.transports.ray.liveness import Liveness
from flexfl.ground.wording import plain

POLL = 1.0  # seconds between two looks at whether Ray is alive
FIRST = 60.0  # seconds that the first round waits for the slowest workers
LONGEST = 300.0  # seconds without any worker after which the run ends
PAUSES = (1.0, 60.0)  # the shortest and longest seconds from a failed start to the next; doubled each time


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker that is ready.

    Attributes
    ----------
    actor
        Ray's handle.
    process
        The ID of its process.
    local
        Whether it is on the driver's machine.
    """

    actor: Any
    process: int
    local: bool


class Workers:
    """Starts actors; those that are ready work while others start, which takes seconds.

    Parameters
    ----------
    start
        Starts an actor, whose method `where` returns the IDs of its node and its process.
    count
        How many.
    liveness
        Notices when Ray has died.
    """

    def __init__(self, start: Callable[[], Any], count: int, liveness: Liveness) -> None:
        self._start_actor, self._liveness = start, liveness
        self._node = ray.get_runtime_context().get_node_id()
        self.ready: list[Worker] = []
        self._starting: dict[Any, Any] = {}  # actors by the call that ends when they have started
        self._due: list[float] = []  # when to start actors whose start has failed
        self._failed_starts, self._why, self._is_new = 0, "", True
        self._none_since = time.monotonic()  # meaningful while none is ready
        for _ in range(count):
            self._start()

    def prepare(self) -> None:
        """Wait until a worker is ready; the first time, until all are, or a minute has passed.

        Raises
        ------
        EngineLost
            Ray has died, or cannot start a worker.
        """
        until = time.monotonic() + FIRST
        while not self.ready or (self._is_new and self._starting and time.monotonic() < until):
            self.wait(())
        self._is_new = False

    def wait(self, calls: Collection[Any]) -> list[Any]:
        """Wait for an event, but not long; return those of the calls that have ended, usually one.

        Raises
        ------
        EngineLost
            See `prepare`.
        """
        self._liveness.check()
        if not self.ready and time.monotonic() - self._none_since > LONGEST:
            raise EngineLost(
                f"Ray has not started a worker within {LONGEST:g} s: {self._why or _too_little()}"
            )
        while self._due and time.monotonic() >= self._due[0]:
            self._due.pop(0)
            self._start()
        if not calls and not self._starting:
            time.sleep(POLL)  # all wait for their next start
            return []
        ended, _ = ray.wait([*calls, *self._starting], timeout=POLL)
        for call in ended:
            if call in self._starting:
                self._started(call)
        return [call for call in ended if call in calls]

    def get(self, call: Any) -> Any:
        """Return the result of a call that has ended."""
        self._liveness.check()  # without its raylet, Ray would end this process
        return ray.get(call)

    def replace(self, worker: Worker, hangs: bool = False) -> None:
        """Replace a worker that has failed."""
        ray.kill(worker.actor)
        if hangs:
            _end(worker)
        self.ready.remove(worker)
        if not self.ready:
            self._none_since = time.monotonic()
        self._start()

    def close(self) -> bool:
        """End all actors, at once; return whether Ray is alive, and may be asked anything else."""
        try:
            self._liveness.check()
        except EngineLost:
            for worker in self.ready:
                _end(worker)
            return False
        for actor in [*(worker.actor for worker in self.ready), *self._starting.values()]:
            ray.kill(actor)
        self.ready, self._starting = [], {}
        return True

    def _start(self) -> None:
        actor = self._start_actor()
        self._starting[actor.where.remote()] = actor

    def _started(self, call: Any) -> None:
        """Note that an actor has started, or has failed to and is to be started later.

        A machine that is short of memory has more in a while; an error in the actor's own code comes again.
        """
        actor = self._starting.pop(call)
        try:
            node, process = self.get(call)
        except RayError as error:
            ray.kill(actor)
            self._why = plain(" ".join(str(error).split()))
            if "creation task" in self._why:
                raise EngineLost(f"a worker cannot be started: {self._why}") from error
            shortest, longest = PAUSES
            self._due.append(time.monotonic() + min(longest, shortest * 2**self._failed_starts))
            self._failed_starts += 1
            return
        self._failed_starts, self._why = 0, ""
        self.ready.append(Worker(actor, process, node == self._node))


def _end(worker: Worker) -> None:
    """End a process on this machine as the kernel does, without Ray."""
    if worker.local:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(worker.process, signal.SIGKILL)


def _too_little() -> str:
    left = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
    rest = " and ".join(f"{value:g} {key}" for key, value in sorted(left.items())) or "no CPU"
    return f"it has {rest} left; take fewer workers (num-workers) or smaller ones (client-gpus)"
