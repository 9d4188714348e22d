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
from flexfl.engine.transports.ray_liveness import Liveness
from flexfl.engine.wording import plain

POLL = 1.0  # seconds between two looks at whether Ray is alive
FIRST = 60.0  # seconds that the first round waits for the slowest workers
LONGEST = 300.0  # seconds without any worker after which the run ends
ATTEMPTS = 3  # failed starts in a row after which a worker is given up


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
        self._failed_starts, self._is_new = 0, True
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
                f"Ray has not started a worker within {LONGEST:g} s: it has {_resources()} left; "
                "take fewer workers (num-workers) or smaller ones (client-gpus)"
            )
        ended, _ = ray.wait([*calls, *self._starting], timeout=POLL)
        for call in ended:
            if call in self._starting:
                self._started(call)
        return [call for call in ended if call in calls]

    def replace(self, worker: Worker, hangs: bool = False) -> None:
        """Replace a worker that has failed."""
        self._kill(worker, hangs)
        self.ready.remove(worker)
        if not self.ready:
            self._none_since = time.monotonic()
        self._start()

    def close(self) -> None:
        """End all actors, at once."""
        try:
            self._liveness.check()
        except EngineLost:  # then Ray ends none
            for worker in self.ready:
                self._kill(worker, True)
        else:
            for actor in [*(worker.actor for worker in self.ready), *self._starting.values()]:
                ray.kill(actor)
        self.ready, self._starting = [], {}

    def _start(self) -> None:
        actor = self._start_actor()
        self._starting[actor.where.remote()] = actor

    def _started(self, call: Any) -> None:
        """Note that an actor has started, or has failed to."""
        actor = self._starting.pop(call)
        try:
            node, process = ray.get(call)
        except RayError as error:
            ray.kill(actor)
            self._failed_starts += 1
            if self._failed_starts < ATTEMPTS:
                self._start()
            elif not self.ready and not self._starting:
                raise EngineLost(
                    f"Ray cannot start a worker: {plain(' '.join(str(error).split()))}"
                ) from error
            return
        self._failed_starts = 0
        self.ready.append(Worker(actor, process, node == self._node))

    @staticmethod
    def _kill(worker: Worker, hangs: bool) -> None:
        """End an actor; one that hangs, or that Ray cannot reach, as the kernel does."""
        ray.kill(worker.actor)
        if hangs and worker.local:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(worker.process, signal.SIGKILL)


def _resources() -> str:
    left = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
    return " and ".join(f"{value:g} {key}" for key, value in sorted(left.items())) or "no CPU"
