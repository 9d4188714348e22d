"""Runs the cells of a comparison side by side: one process for each core, or for each share of a GPU."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fedtide.comparison.search import Judge, Pruning
from fedtide.comparison.store import Place
from fedtide.config import Settings
from fedtide.engine.interrupts import ENDING, Stopped, deferring
from fedtide.engine.parts import provided_parts, require_ray
from fedtide.engine.read_run import records_in
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.ray.leftovers import CELL, locked_folder
from fedtide.ground import dotted

Files = Mapping[str, bytes]
Outcome = Files | str
"""The files of a finished run, or why there are none."""
Report = Callable[[Settings, Outcome], None]
"""What is called when a cell has ended."""


PRUNED = "pruned"  # an empty file in the folder of a run that was given up


class Work(NamedTuple):
    """A cell to run."""

    settings: Settings
    place: Place
    pruning: Pruning | None = None  # of a trial that may be given up


def run_cell(work: Work, provided: Mapping[str, Any] | None = None) -> Outcome:
    """Run one cell in this process on the inline engine, or resume it.

    On machines other than the driver's nothing is left behind. `provided` are the parts that the driver has
    as objects.
    """
    settings, place, pruning = work
    dotted.PROVIDED.update(provided or {})
    # These import PyTorch, which the driver of a comparison on Ray does without.
    from fedtide.analysis.compute import keep_numbers_of
    from fedtide.engine.run import simulate

    working_folder = place.working_folder if Path(place.working_folder).is_dir() else "."
    with chdir(working_folder), _folder(place) as folder:
        resume = str(folder) if folder.exists() else ""
        try:
            # It is logged when it is finished.
            inline = replace(settings, engine="inline", log="", resume=resume)
            stopping = partial(_pruned, folder, pruning) if pruning else _unstoppable
            experiment, _, ended = simulate(inline, folder, stopping=stopping, extendable=False)
            if settings.report:
                with suppress(Exception):  # the page of the comparison then says that they are missing
                    keep_numbers_of(experiment, ended, folder)
        except Exception as error:  # one cell's error must not end the comparison
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        if "failed" in ended.summary:
            return str(ended.summary["failed"])
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def run_all(queue: deque[Work], report: Report, alone: bool = False) -> None:
    """Run cells in this process or on Ray, as the settings of the first say; `report` may add to the queue.

    `alone`: there is only one. ValueError: Ray cannot be started; EngineLost: Ray has died; Stopped: by a
    signal.
    """
    if not queue:
        return
    first = queue[0].settings
    if not first.ray_address and (alone or first.num_workers == 1):
        while queue:
            work = queue.popleft()
            report(work.settings, run_cell(work))
    else:
        require_ray("take --num-workers 1")
        run_on_ray(queue, report, first.num_workers, first.client_gpus, first.ray_address)


def run_on_ray(
    queue: deque[Work], report: Report, num_workers: int, client_gpus: float, address: str
) -> None:
    """Run cells as tasks of Ray, on this machine or on a cluster; they are reported in any order.

    `num_workers`, `client_gpus` and `address` are as in the settings.
    """
    import ray  # not installed on every machine

    from fedtide.engine.transports.ray.cluster import start_ray
    from fedtide.engine.transports.ray.liveness import Liveness

    with deferring(*ENDING) as signals:  # Ray makes what a handler raises an error of its own, or loses it
        own = None if ray.is_initialized() else start_ray(num_workers, address)  # else the session's
        try:
            liveness = Liveness()
            gpus = client_gpus if ray.cluster_resources().get("GPU", 0) else 0
            # A cell whose process died, for want of memory perhaps, resumes from its checkpoint, once.
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=1)(run_cell)
            provided = ray.put(provided_parts(work.settings for work in queue))
            waiting: dict[Any, Settings] = {}
            while not signals:
                while queue and (not num_workers or len(waiting) < num_workers):
                    work = queue.popleft()
                    waiting[task.remote(work, provided)] = work.settings
                if not waiting:
                    return
                liveness.check()
                ready, _ = ray.wait([*waiting], timeout=0.2)  # so that a signal is noticed soon
                for done in ready:
                    report(waiting.pop(done), _outcome(done))
        finally:
            if own:
                own.stop()
    raise Stopped(signals[0])


def _outcome(done: Any) -> Outcome:
    import ray  # not installed on every machine
    from ray.exceptions import RayError

    try:
        outcome: Outcome = ray.get(done)
    except RayError as error:
        return f"its process failed: {type(error).__name__}"
    return outcome


@contextmanager
def _unstoppable(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """Leave signals to the comparison: a run that ended early would look finished."""
    yield []


@contextmanager
def _pruned(folder: Path, pruning: Pruning, server: RoundServer, console: Console) -> Iterator[list[int]]:
    """Give a run up when it is hopeless; signals are left to the comparison."""
    judge = Judge(pruning)

    def watch(record: dict[str, Any]) -> None:
        if judge.is_hopeless(record):
            server.stopping = True

    for record in records_in(folder):  # of a run that is resumed
        watch(record)
    server.observers = [*server.observers, watch]
    yield []
    if server.stopping:
        (folder / PRUNED).touch()


@contextmanager
def _folder(place: Place) -> Iterator[Path]:
    """Yield the folder of a cell, on other machines than the driver's a temporary one."""
    unfinished = Path(place.unfinished)
    if platform.node() == place.machine and unfinished.parent.is_dir():
        yield unfinished
        return
    with locked_folder(CELL) as folder:
        yield Path(folder) / "run"
