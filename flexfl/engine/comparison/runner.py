"""Runs the cells of a comparison side by side: one process for each core, or for each share of a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from flexfl.config import Settings
from flexfl.engine.leftovers import CELL, locked_folder
from flexfl.engine.run import simulate
from flexfl.engine.server import RoundServer

Files = Mapping[str, bytes]
Outcome = Files | str
"""The files of a finished run, or why there are none."""


def run_cell(settings: Settings, working_folder: str) -> Outcome:
    """Run one cell in this process; nothing is left on this machine.

    Parameters
    ----------
    settings
        Of the run. The engine is inline, whatever they say.
    working_folder
        Where relative paths start, if it exists here.
    """
    with locked_folder(CELL) as folder, _inside(working_folder):
        try:
            inline = replace(settings, engine="inline", log="")  # it is logged when it is finished
            _, run_folder = simulate(inline, Path(folder) / "run", stopping=_unstoppable)
        except Exception as error:  # one cell's error must not end the comparison
            return f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {path.name: path.read_bytes() for path in sorted(run_folder.path.iterdir())}


def run_here(cells: Sequence[Settings], report: Callable[[Settings, Outcome], None]) -> None:
    """Run cells one after the other, in this process."""
    for settings in cells:
        report(settings, run_cell(settings, os.getcwd()))


def run_on_ray(
    cells: Sequence[Settings],
    report: Callable[[Settings, Outcome], None],
    num_workers: int = 0,
    client_gpus: float = 0.0,
    address: str = "",
) -> None:
    """Run cells as tasks of Ray, on this machine or on a cluster.

    Parameters
    ----------
    cells
        The settings of each.
    report
        Called when a cell has ended, in any order.
    num_workers
        How many at a time on this machine; 0: as many as there are cores.
    client_gpus
        Share of a GPU that each gets, if there are GPUs.
    address
        Of a cluster; default: Ray is started on this machine.

    Raises
    ------
    ValueError
        There is no cluster at the address.
    """
    import ray  # not installed on every machine
    from ray.exceptions import RayError

    from flexfl.engine.transports.ray_cluster import start_ray

    running = start_ray(num_workers, address)
    try:
        gpus = client_gpus if ray.cluster_resources().get("GPU", 0) else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(run_cell)
        most = num_workers or len(cells)
        waiting: dict[Any, Settings] = {}
        queue = iter(cells)
        while True:
            for settings in queue:
                waiting[task.remote(settings, os.getcwd())] = settings
                if len(waiting) >= most:
                    break
            if not waiting:
                return
            ready, _ = ray.wait([*waiting], timeout=0.2)  # so that a signal is noticed soon
            for done in ready:
                settings = waiting.pop(done)
                try:
                    outcome: Outcome = ray.get(done)
                except RayError as error:
                    outcome = f"its process failed: {type(error).__name__}"
                report(settings, outcome)
    finally:
        running.stop()


@contextmanager
def _unstoppable(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """Leave signals to the comparison: a run that ended early would look finished."""
    yield []


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Work in a folder, if it exists."""
    before = os.getcwd()
    if Path(folder).is_dir():
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
