"""The Ray actors of a transport: those that are ready, and a new one for each that has failed.

Ray could restart actors itself (`max_restarts`), but then reports a failure one to six seconds later, and no
longer says when it was for want of memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError

from fedtide.base.wording import count, ends
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.liveness import Liveness

POLL = 1.0  # seconds between two checks of whether Ray is alive
FIRST = 60.0  # seconds that the first round waits for the slowest workers
SILENCE = 15.0  # seconds without a word that workers usually need to start
PATIENCE = 300.0  # seconds without any worker after which the run ends
OUT_OF_MEMORY = "Ray ended it, as the machine was out of memory"
PAUSE = 5.0  # seconds from a failed start to the next


@dataclass(frozen=True, eq=False)
class Worker:
    """A worker that is ready: Ray's handle, its node's ID, and whether that is the driver's machine."""

    actor: Any
    node: str
    local: bool


class Workers:
    """Starts as many actors as `wanted` says; those that are ready work while others start, for seconds.

    The method `where` of an actor returns the ID of its node. `tell` takes a line for the user, once for
    each kind of error.
    """

    def __init__(
        self,
        start: Callable[[], Any],
        wanted: Callable[[], int],
        liveness: Liveness,
        tell: Callable[[str], object],
    ) -> None:
        self._start_actor, self._wanted, self._liveness, self._tell = start, wanted, liveness, tell
        self.node = ray.get_runtime_context().get_node_id()
        self.ready: list[Worker] = []
        self._starting: dict[Any, Any] = {}  # actors by the call that ends when they have started
        self._due: list[float] = []  # when to start actors whose start has failed
        self._why, self._is_new = "", True
        self._none_since = time.monotonic()  # meaningful while none is ready
        self._told: set[str] = set()
        self._grow()

    def prepare(self) -> None:
        """Wait until a worker is ready; the first time, until all are, or a minute has passed."""
        self._liveness.check()
        self._grow()
        began = time.monotonic()
        while not self.ready or (self._is_new and self._starting and time.monotonic() < began + FIRST):
            if time.monotonic() > began + SILENCE:
                self._tell_once(
                    f"Ray has not started {count(len(self._starting), 'worker')} yet: {_too_little()}", ""
                )
            self.wait(())
        self._is_new = False

    def wait(self, calls: Collection[Any]) -> list[Any]:
        """Wait for an event, at most a second; return those of the calls that have ended, usually one.

        EngineLost: Ray has died, or cannot start a worker.
        """
        self._liveness.check()
        if not self.ready and time.monotonic() - self._none_since > PATIENCE:
            raise EngineLost(
                f"Ray has not started a worker within {PATIENCE:g} s: {self._why or _too_little()}"
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
        self._liveness.check()  # without its raylet, Ray would end this process
        return ray.get(call)

    def check(self) -> None:
        """Raise EngineLost if Ray has died, without which its object store would end this process."""
        self._liveness.check()

    def result(self, call: Any) -> Any:
        while call not in self.wait([call]):
            pass
        return self.get(call)

    def replace(self, worker: Worker, why: str) -> None:
        """Replace a worker that has failed, or hangs: Ray ends it even if a signal has stopped it."""
        ray.kill(worker.actor)
        self._tell_once(f"a worker is replaced: {why}", why)
        self.ready.remove(worker)
        if not self.ready:
            self._none_since = time.monotonic()
        self._start()

    def close(self) -> bool:
        """End all actors, at once; return whether Ray is alive, and may be asked anything else.

        If Ray has died, they end by themselves.
        """
        try:
            self._liveness.check()
        except EngineLost:
            return False
        for actor in [*(worker.actor for worker in self.ready), *self._starting.values()]:
            ray.kill(actor)
        self.ready, self._starting = [], {}
        return True

    def _grow(self) -> None:
        """Start as many as are wanted: the cluster may have grown."""
        for _ in range(self._wanted() - len(self.ready) - len(self._starting) - len(self._due)):
            self._start()

    def _tell_once(self, line: str, kind: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(line)

    def _start(self) -> None:
        actor = self._start_actor()
        self._starting[actor.where.remote()] = actor

    def _started(self, call: Any) -> None:
        """Note that an actor has started, or has failed to and is to be started again.

        A machine may be short of memory for a while; an error in the actor's own code would come again.
        """
        actor = self._starting.pop(call)
        try:
            node = self.get(call)
        except RayError as error:
            ray.kill(actor)
            self._why = OUT_OF_MEMORY if isinstance(error, OutOfMemoryError) else ends(error)
            if "creation task" in self._why:
                raise EngineLost(f"a worker cannot be started: {self._why}") from error
            again = f"it is tried again for {PATIENCE:g} s; fewer workers (num-workers) may help"
            self._tell_once(f"a worker cannot start: {self._why}; {again}", type(error).__name__)
            self._due.append(time.monotonic() + PAUSE)
            return
        self._why = ""
        self.ready.append(Worker(actor, node, node == self.node))


def _too_little() -> str:
    left = {key: value for key, value in ray.available_resources().items() if key in ("CPU", "GPU")}
    rest = " and ".join(f"{value:g} {key}" for key, value in sorted(left.items())) or "no CPU"
    return f"it has {rest} left; use fewer workers (num-workers) or smaller ones (client-gpus)"
