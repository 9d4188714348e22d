"""Cells as tasks of Ray, on this machine or on a cluster.

What cells on other machines read is read here, and sent through Ray's object store.
"""

from __future__ import annotations

import gc
import hashlib
import pickle  # noqa: TID251 - of what this program has pickled itself, as Ray does
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from ray.cloudpickle import CloudPickler
from ray.exceptions import OutOfMemoryError, RayError

from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.comparison.runner import Outcome, Report, Work, run_cell
from fedtide.config import Settings
from fedtide.engine.interrupts import deferring
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray.cluster import imports, start_ray
from fedtide.engine.transports.ray.liveness import PATIENCE, Liveness
from fedtide.engine.transports.ray.workers import OUT_OF_MEMORY
from fedtide.plan import Plan, named_parts

AGAIN = "rerun the command to continue"
LARGE = 1 << 16  # bytes of an array that is an object of its own


def _run_cell(work: Work, *shared: Any) -> Outcome:
    """Run a cell as `run_cell` does, in a process that runs many.

    What the first one has imported and compiled is not scanned for garbage in all others, which takes longer
    than some of them.
    """
    try:
        return run_cell(work, *shared)
    finally:
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()


class OnRay:
    """Ray, started or connected to as the settings say, unless the session has started it."""

    def __init__(self, settings: Settings) -> None:
        self._num_workers = settings.num_workers
        self._own = None if ray.is_initialized() else start_ray(settings.num_workers, settings.ray_address)
        self._liveness = Liveness(PATIENCE if settings.ray_address else 0.0)
        gpus = settings.client_gpus if ray.cluster_resources().get("GPU", 0) else 0
        own = {} if self._own else {"runtime_env": imports()}
        # A cell whose process died, for want of memory perhaps, resumes from its checkpoint, once.
        self._task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=1, **own)(_run_cell)
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


class Shipped(NamedTuple):
    """Data and trace of a cell without their large arrays, these, and hashes of the user's files."""

    pickled: Any
    arrays: Sequence[Any]
    sources: Mapping[str, str]

    def unpack_into(self, plan: Plan) -> None:
        """Give a plan what was shipped; its arrays stay in the object store, one copy for each machine."""
        unpickler = pickle.Unpickler(BytesIO(ray.get(self.pickled)))
        unpickler.persistent_load = ray.get([*self.arrays]).__getitem__  # type: ignore[method-assign]
        plan.data, plan.trace = unpickler.load()
        plan.sources = self.sources


class Shipping:
    """Ships what cells read; what several of them have is read once, and equal arrays are sent once."""

    def __init__(self) -> None:
        self._known: dict[Settings, tuple[Any, Sequence[Any]]] = {}
        self._arrays: dict[bytes, Any] = {}  # by digest

    def ship(self, settings: Settings) -> Shipped:
        """Read the data and the trace of a cell; ValueError: they cannot be read."""
        # The clients' settings, without two that neither data nor trace depend on.
        key = replace(settings.for_clients(), learning_rate=1.0, batch_size=0)
        plan = Plan.of(settings)
        if key not in self._known:
            file = BytesIO()
            pickler = _Pickler(file, self._put)
            pickler.dump((plan.data, plan.trace))
            self._known[key] = ray.put(file.getvalue()), pickler.arrays
        return Shipped(*self._known[key], plan.sources)

    def _put(self, array: NDArray[Any]) -> Any:
        """Put an array into the object store unless an equal one is there."""
        digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
        if (known := digest.digest()) not in self._arrays:
            self._arrays[known] = ray.put(array)
        return self._arrays[known]


class _Pickler(CloudPickler):  # type: ignore[misc]
    """Pickles everything but large arrays, put elsewhere: their places in `arrays` stand for them."""

    def __init__(self, file: BytesIO, put: Callable[[NDArray[Any]], Any]) -> None:
        super().__init__(file)
        self._put, self.arrays = put, list[Any]()

    def persistent_id(self, found: Any) -> int | None:
        if type(found) is not np.ndarray or found.nbytes < LARGE or found.dtype.hasobject:
            return None
        self.arrays.append(self._put(found))
        return len(self.arrays) - 1
