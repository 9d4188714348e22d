"""Runs the cells of a comparison side by side: one process for each core, or for each share of a GPU."""

from __future__ import annotations

import platform
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from fedtide.base import dotted
from fedtide.base.errors import SettingsError, told
from fedtide.comparison.search import PRUNED, Pruning, judge
from fedtide.comparison.store import Place, Unfinished
from fedtide.config import Settings
from fedtide.engine.interrupts import whole
from fedtide.engine.read_run import read_run
from fedtide.engine.run_files import records_in
from fedtide.engine.run_folder import TAKEN, FolderLost
from fedtide.engine.server import RoundServer
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray import require_ray
from fedtide.engine.transports.ray.leftovers import CELL, locked_folder
from fedtide.plan import Plan

if TYPE_CHECKING:  # Ray is not installed on every machine
    from fedtide.comparison.on_ray import OnRay, Shipped

Files = Mapping[str, bytes]
Outcome = Files | str
"""The files of a finished run, or why there are none: the last line, after the traceback of a defect."""
Report = Callable[[Settings, Outcome], None]
"""What is called when a cell has ended."""


class Work(NamedTuple):
    """A cell to run."""

    settings: Settings
    place: Place
    pruning: Pruning | None = None  # of a trial that may be given up


def run_cell(
    work: Work, provided: Mapping[str, Any] | None = None, shipped: Shipped | None = None
) -> Outcome:
    """Run one cell in this process on the inline engine, or resume it.

    On machines other than the driver's nothing is left behind. `provided` are the parts that the driver has
    as objects, and `shipped` is what it has read.
    """
    settings, place, pruning = work
    dotted.PROVIDED.update(provided or {})
    # These import PyTorch, which the driver of a comparison on Ray does without.
    from fedtide.engine.compute_numbers import keep_numbers_of
    from fedtide.engine.run import FAILURES, simulate

    working_folder = place.working_folder if Path(place.working_folder).is_dir() else "."
    with chdir(working_folder), _folder(place) as folder:
        resume = str(folder) if folder.exists() else ""
        try:
            # It is logged when it is finished.
            inline = replace(settings, engine="inline", log="", resume=resume)
            stopping = partial(_pruned, folder, pruning) if pruning else _unstoppable
            plan = Plan.of(inline)
            if shipped:
                shipped.unpack_into(plan)
            experiment, _, ended = simulate(plan, folder, stopping=stopping, extendable=False)
            if settings.report != "none":
                with suppress(Exception):  # the page of the comparison then says that they are missing
                    keep_numbers_of(experiment, ended, read_run(folder, records=True))
        except (SettingsError, *FAILURES) as error:
            said = " ".join(str(error).split()) or type(error).__name__
            is_outside = isinstance(error, OSError | EngineLost | FolderLost) or said.endswith(TAKEN)
            return Unfinished(said) if is_outside else said
        except Exception as error:  # one cell's defect must not end the comparison
            return "".join([*traceback.format_exception(error), told(error)])
        if "failed" in ended.summary:
            return str(ended.summary["failed"])
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


class Runner:
    """Runs cells in this process or on Ray, as the settings of one say, which all have in common.

    Ray is started when it is first needed, and stopped in the end. SettingsError: it cannot be started;
    EngineLost: it does not start, or has died.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._on_ray: OnRay | None = None
        self._shown: set[str] = set()  # defects whose traceback was shown

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_ray:
            self._on_ray.close()

    def run(self, queue: deque[Work], report: Report, alone: bool = False) -> None:
        """Run cells; `report` may add to the queue. `alone`: there is only one. Stopped: by a signal."""
        if not queue:
            return
        if not self._settings.ray_address and (alone or self._settings.num_workers == 1):
            with whole():  # a process whose imports are cut off may crash
                import fedtide.engine.compute_numbers  # noqa: F401 - for `run_cell`
                from fedtide.engine.run import unscanned

            with unscanned():
                while queue:
                    work = queue.popleft()
                    self._report(report, work.settings, run_cell(work))
            return
        # Ray makes what a handler raises an error of its own, or loses it; as it starts, it sets its own.
        if not self._on_ray:
            require_ray("take --num-workers 1")
            with whole():
                from fedtide.comparison.on_ray import OnRay

                self._on_ray = OnRay(self._settings)
        with whole() as signals:
            self._on_ray.run(queue, partial(self._report, report), signals)

    def _report(self, report: Report, settings: Settings, outcome: Outcome) -> None:
        """Report how a cell has ended; show the traceback of a defect, once where several cells have it."""
        if isinstance(outcome, str):
            *lines, outcome = outcome.splitlines()
            if lines and outcome not in self._shown:
                self._shown.add(outcome)
                print(*lines, sep="\n", file=sys.stderr)
        report(settings, outcome)


@contextmanager
def _unstoppable(server: RoundServer, console: Console) -> Iterator[list[int]]:
    """Leave signals to the comparison: a run that ended early would look finished."""
    yield []


@contextmanager
def _pruned(folder: Path, pruning: Pruning, server: RoundServer, console: Console) -> Iterator[list[int]]:
    """Give a run up when it is hopeless; signals are left to the comparison."""
    is_hopeless = judge(pruning)

    def watch(record: dict[str, Any]) -> None:
        if is_hopeless(record):
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
