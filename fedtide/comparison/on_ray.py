"""Cells as tasks of Ray, on this machine or on a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.comparison.runner import Outcome, Report, Work, run_cell
from fedtide.comparison.shipping import Shipping
from fedtide.config import Settings
from fedtide.engine.interrupts import deferring
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.cluster import imports, start_ray
from fedtide.engine.transports.ray.liveness import PATIENCE, Liveness
from fedtide.engine.transports.ray.workers import OUT_OF_MEMORY
from fedtide.plan import named_parts

AGAIN = "rerun the command to continue"


class OnRay:
    """Ray, started or connected to as the settings say, unless the session has started it."""

    def __init__(self, settings: Settings) -> None:
        self._num_workers = settings.num_workers
        self._own = None if ray.is_initialized() else start_ray(settings.num_workers, settings.ray_address)
        self._liveness = Liveness(PATIENCE if settings.ray_address else 0.0)
        gpus = settings.client_gpus if ray.cluster_resources().get("GPU", 0) else 0
        own = {} if self._own else {"runtime_env": imports()}
        # A cell whose process died, for want of memory perhaps, resumes from its checkpoint, once.
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=1, **own)(run_cell)
        elsewhere = bool(settings.ray_address) or len(ray.nodes()) > 1
        self._shipping = Shipping() if elsewhere else None

    def run(self, queue: deque[Work], report: Report, signals: Sequence[int]) -> None:
        """Run cells until all are done or there is a signal; they are reported in any order."""
        specs = (spec for work in queue for _, spec in named_parts(work.settings.as_mapping()))
        names = {spec.partition(":")[0].strip() for spec in specs}
        provided = ray.put({name: dotted.PROVIDED[name] for name in names & dotted.PROVIDED.keys()})
        waiting: dict[Any, Settings] = {}
        while not signals:
            while queue and not signals and (not self._num_workers or len(waiting) < self._num_workers):
                work = queue.popleft()
                try:
                    shipped = self._shipping.ship(work.settings) if self._shipping else None
                except SettingsError as error:
                    report(work.settings, str(error))
                    continue
                waiting[self._task.remote(work, provided, shipped)] = work.settings
            if not waiting:
                return
            try:
                self._liveness.check()
                if self._own and self._own.nodes:
                    self._own.nodes.check()
            except EngineLost as error:
                raise EngineLost(f"{error}; {AGAIN}") from error
            ready, _ = ray.wait([*waiting], timeout=0.2)  # so that a signal is noticed soon
            for done in ready:
                report(waiting.pop(done), _outcome(done))

    def close(self) -> None:
        """Stop Ray if it is ours; if it has died, to call it would end this process."""
        with deferring(), suppress(EngineLost):
            self._liveness.check()
            if self._own:
                self._own.stop()
        self._liveness.close()


def _outcome(done: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(done)
    except RayError as error:
        why = OUT_OF_MEMORY if isinstance(error, OutOfMemoryError) else type(error).__name__
        return f"its process died twice: {why}; {AGAIN}"
    return outcome
