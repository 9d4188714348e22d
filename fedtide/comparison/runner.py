"""Runs the cells of a comparison side by side: one process for each core, or for each share of a GPU."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedtide.comparison.store import Place
from fedtide.config import Settings
from fedtide.engine.interrupts import ENDING, Stopped, deferring
from fedtide.engine.parts import provided_parts
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.ray.leftovers import CELL, locked_folder
from fedtide.ground import dotted

Files = Mapping[str, bytes]
Outcome = Files | str
"""The files of a finished run, or why there are none."""
Report = Callable[[Settings, Outcome], None]
"""What is called when a cell has ended."""


def run_cell(settings: Settings, place: Place, provided: Mapping[str, Any] | None = None) -> Outcome:
    """Run one cell in this process on the inline engine, or resume it.

    On machines other than the driver's nothing is left behind. `provided` are the parts that the driver has
    as objects.
    """
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
            experiment, _, ended = simulate(inline, folder, stopping=_unstoppable, extendable=False)
            if settings.report:
                with suppress(Exception):  # the page of the comparison then says that they are missing
                    keep_numbers_of(experiment, ended, folder)
        except Exception as error:  # one cell's error must not end the comparison
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        if "failed" in ended.summary:
            return str(ended.summary["failed"])
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def run_here(places: Mapping[Settings, Place], report: Report) -> None:
    """Run cells one after the other, in this process."""
    for settings, place in places.items():
        report(settings, run_cell(settings, place))


def run_on_ray(
    places: Mapping[Settings, Place], report: Report, num_workers: int, client_gpus: float, address: str
) -> None:
    """Run cells as tasks of Ray, on this machine or on a cluster; they are reported in any order.

    `num_workers`, `client_gpus` and `address` are as in the settings. ValueError: there is no cluster at the
    address; EngineLost: Ray has died; Stopped: by a signal.
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
            most = num_workers or len(places)
            provided = ray.put(provided_parts(places))
            waiting: dict[Any, Settings] = {}
            queue = iter(places.items())
            while not signals:
                for settings, place in queue:
                    waiting[task.remote(settings, place, provided)] = settings
                    if len(waiting) >= most:
                        break
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
def _folder(place: Place) -> Iterator[Path]:
    """Yield the folder of a cell, on other machines than the driver's a temporary one."""
    unfinished = Path(place.unfinished)
    if platform.node() == place.machine and unfinished.parent.is_dir():
        yield unfinished
        return
    with locked_folder(CELL) as folder:
        yield Path(folder) / "run"
