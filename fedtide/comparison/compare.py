"""A comparison: trains the cells that are not finished yet, and writes the table of all."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from fedtide.base.display import lost_display
from fedtide.base.errors import SettingsError
from fedtide.base.wording import count, say
from fedtide.comparison import claims, latex, tables
from fedtide.comparison.comparison import CELLS, COMPARISON, Comparison
from fedtide.comparison.methods import parse_baseline, shown_value
from fedtide.comparison.pivot import pivots_of
from fedtide.comparison.results import CellRun, targets_of
from fedtide.comparison.runner import Outcome, Runner, Work
from fedtide.comparison.store import CellStore, Unfinished, identity, write_texts, writing_in
from fedtide.comparison.tuning import Tuning, tuned
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.config.target import Target
from fedtide.engine.interrupts import Stopped, deferring, raising_stopped, whole
from fedtide.engine.observers import LoggedRun
from fedtide.engine.read_run import Run
from fedtide.engine.run_folder import lock, program_version, slug
from fedtide.loggers.progress import Pace, progress_bar
from fedtide.loggers.registry import log_finished, logger_types

INTERRUPTED = "interrupted; rerun the command to continue"


class Request(NamedTuple):
    """What a comparison is to compare."""

    cells: Sequence[Cell]  # all with the same `run_dir` and workers
    reach: Sequence[Target]  # the table has the cost of reaching these, or that at which all cells stop
    fresh: bool  # train finished cells again
    tuning: Tuning | None  # what is searched before
    baseline: str  # see `parse_baseline`


def compare(request: Request, console: Console) -> Comparison:
    """Train the cells that are not finished yet, and write the table of all.

    ValueError: Ray cannot be started, the folder cannot be written, another process runs this comparison, or
    a target or the baseline is not one of these cells; see also `tuned`.
    """
    cells, reach, fresh, tuning, baseline = request
    first = cells[0].settings
    if any(cell.settings.client_timeout for cell in cells):
        raise SettingsError(
            "client-timeout: runs of a comparison train in one process each, in which nothing can end a "
            "client that hangs; leave it out"
        )
    compared_to = parse_baseline(baseline, [cell.others for cell in cells])
    reach = targets_of(cells, reach)
    logger_types(first.log)
    store, folder = CellStore(first.run_dir), _folder(cells, tuning)
    _check_different(cells, store)
    with _locked(folder):
        unsearched: Mapping[Settings, str] = {}
        with Runner(first) as runner:
            if tuning:
                try:
                    cells, unsearched = tuned(cells, tuning, folder, console, fresh, runner)
                except Stopped as stopped:
                    console.print(INTERRUPTED, highlight=False)
                    return Comparison([], folder, signal=stopped.number)
                if not cells:
                    return Comparison([], folder, failed=unsearched)
            progress = _Progress(cells, store, console, folder, fresh)
            number = progress.complete(runner)
        known = progress.finished
        finished = [CellRun(cell, known[cell.settings]) for cell in cells if cell.settings in known]
        failed = {**unsearched, **progress.failed}
        every = [*cells, *(cell for cell in request.cells if cell.settings in unsearched)]
        lacking = [
            claims.Lacking(cell.varied, not isinstance(failed.get(cell.settings, Unfinished()), Unfinished))
            for cell in every
            if cell.settings not in known
        ]
        comparison = Comparison(finished, folder, compared_to, reach, lacking, failed, number)
        with deferring() as signals:
            _write(comparison, every, store)
            _show(console, comparison, len(cells), progress.found)
        return replace(comparison, signal=number or signals[0]) if signals else comparison


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder of a comparison, and lock it; one that is still empty in the end is removed."""
    with writing_in(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, folder)
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()
    finally:
        os.close(descriptor)


class _Progress:
    """The cells that are finished and those that failed; it stores, shows and logs each as it ends."""

    def __init__(
        self, cells: Sequence[Cell], store: CellStore, console: Console, folder: Path, fresh: bool
    ) -> None:
        self.cells = {cell.settings: cell for cell in cells}
        self.store, self.console, self.folder = store, console, folder
        self.finished: dict[Settings, Run] = {}
        self.failed: dict[Settings, str] = {}
        for settings in self.cells:
            if fresh:
                store.discard(settings)
            elif (found := store.load(settings)) is not None:
                self.finished[settings] = found
        self._scores = {settings: run.score() for settings, run in self.finished.items()}
        self.found = len(self.finished)
        if self.found:
            say(console, f"{self.found} of {count(len(cells), 'run')} were finished already")
        own = program_version()
        others = Counter(run.version for run in self.finished.values() if run.version != own)
        for version, old in others.items():
            console.print(
                f"{count(old, 'finished cell')} of version {version}, this is {own}; "
                "--fresh trains them again"
            )
        self.bar = progress_bar("", console)
        self._hints: set[str] = set()  # that were shown
        self._task = self.bar.add_task(self._best(), total=len(cells), completed=len(self.finished))
        self._pace = Pace()

    def complete(self, runner: Runner) -> int:
        """Run the cells that are not finished; return the signal that has ended this, or 0."""
        waiting = [settings for settings in self.cells if settings not in self.finished]
        if not waiting:
            return 0
        queue = deque(Work(settings, self.store.place(settings)) for settings in waiting)
        try:
            with self.bar, raising_stopped():
                runner.run(queue, self.note, alone=len(waiting) == 1)
        except Stopped as stopped:
            return stopped.number
        return 0

    def note(self, settings: Settings, outcome: Outcome) -> None:
        """Store what became of a cell, show and log it."""
        with whole():  # a finished cell is kept
            found = self.store.keep(settings, outcome)
            if isinstance(found, str):
                self.failed[settings] = found
            else:
                self.finished[settings], self._scores[settings] = found, found.score()
        self._show(settings)
        if settings in self.finished:
            self._log(settings)

    def _show(self, settings: Settings) -> None:
        self.bar.update(self._task, advance=1, description=self._best())
        left = self._pace.left(self.bar.tasks[0])
        varied = self.cells[settings].varied.items()
        name = ", ".join(f"{key} {shown_value(value)}" for key, value in varied) or settings.strategy
        if settings in self.failed:
            say(self.bar.console, f"failed: {name}: {self.failed[settings]}")
        elif not self.console.is_terminal:
            run, done = self.finished[settings], f"{len(self.finished)}/{len(self.cells)}"
            say(self.bar.console, f"{done}  {name}: {run.metric.title} {self._scores[settings]:g}{left}")
        hint = self.finished[settings].summary.get("hint") if settings in self.finished else None
        if hint and hint not in self._hints:
            self._hints.add(hint)
            say(self.bar.console, hint)

    def _best(self) -> str:
        known = {settings: score for settings, score in self._scores.items() if not math.isnan(score)}
        metrics = {self.finished[settings].metric for settings in known}
        if len(metrics) != 1:  # there is nothing to compare
            return ""
        sign = 1 if metrics.pop().higher_is_better else -1
        best = max(known, key=lambda settings: sign * known[settings])
        varied = " ".join(str(value) for value in self.cells[best].others.values())
        return f"best {known[best]:.4f} {varied}"

    def _log(self, settings: Settings) -> None:
        """Log a finished cell as a run of its own, whose name is what varies."""
        varied, found = self.cells[settings].varied, self.finished[settings]
        name = ", ".join(f"{key}={value}" for key, value in varied.items()) or settings.strategy
        files = self.folder / "logs" / f"{slug([name], 100)}-{identity(settings)}"
        shutil.rmtree(files, ignore_errors=True)  # of a run that was trained again
        run = LoggedRun(name, files, self.folder.parent, self.folder.name)
        log_finished(settings, found.records, found.summary, run, self.console)


def _check_different(cells: Sequence[Cell], store: CellStore) -> None:
    """Refuse cells that are the same run, as what varies does not change the result."""
    known: dict[Path, Cell] = {}
    for cell in cells:
        other = known.setdefault(store.path(cell.settings), cell)
        if other is not cell:
            here, there = (cell.settings.as_mapping(), other.settings.as_mapping())
            keys = ", ".join(key for key in here if here[key] != there[key])
            raise SettingsError(f"{keys}: give one value, as it does not change the results of a comparison")


def _folder(cells: Sequence[Cell], tuning: Tuning | None) -> Path:
    """Return the comparison's folder; its name follows from what varies, what is searched, and the rest."""
    varied, settings = tuple(cells[0].varied), cells[0].settings
    searched = "" if tuning is None else f"-{tuning.identity}"
    name = f"compare-{slug((settings.task, *varied), 80)}-{identity(settings, varied)}{searched}"
    return Path(settings.run_dir) / name


def _write(comparison: Comparison, cells: Sequence[Cell], store: CellStore) -> None:
    """Write the tables, and where the cells lie."""
    rows = comparison.rows
    pivots, searched = pivots_of(rows), tables.searched(rows)
    parts = [(pivot.columns, pivot.note) for pivot in pivots if pivot.is_grid]
    parts.append((comparison.columns, tables.caption(rows)))
    if costs := tables.costs(rows):
        parts.append((costs, tables.COSTS))
    ranks = claims.ranks_table(comparison.rankings)
    ranked = [(ranks, f"{claims.RANKS} {' '.join(comparison.claims)}")] if ranks else []
    papers = [latex.pivot_table(pivot, searched) for pivot in pivots]
    index = [
        {**cell.varied, "folder": str(store.path(cell.settings))}
        | ({} if cell.paper is None else {"paper": cell.paper})
        | ({"tuned": dict(cell.tuned)} if cell.tuned else {})
        for cell in cells
    ]
    failed = {
        store.path(settings).name: reason
        for settings, reason in comparison.failed.items()
        if not isinstance(reason, Unfinished)
    }
    about: dict[str, object] = {"command": sys.argv, "reach": [*map(str, comparison.reach)]}
    about |= {"baseline": comparison.baseline, "failed": failed}
    about |= {"display": lost} if (lost := lost_display()) else {}
    texts = {
        "table.md": "\n".join(tables.markdown(*each) for each in [*parts, *ranked]),
        "table.tex": "\n".join([latex.PACKAGE, *papers, *(latex.latex(*each) for each in ranked)]),
        "table.csv": tables.comma_separated(rows),
        CELLS: json.dumps(index, indent=2) + "\n",
        COMPARISON: json.dumps(about, indent=2) + "\n",
    }
    write_texts(comparison.folder, texts)


def _show(console: Console, comparison: Comparison, wanted: int, found: int) -> None:
    if comparison.rows:
        done = len(comparison.runs)
        title = f"{done} of {count(wanted, 'run')}" if done < wanted else count(done, "run")
        title += f", {found} of them finished before" if found else ""
        console.print(tables.terminal(comparison.columns, title, console.width))
    for target in comparison.reach:
        if not target.name and target.value > 1 and all(row.metric.is_share for row in comparison.rows):
            console.print(f"reach is {target}, but no share is above 1: 80 % is 0.8", highlight=False)
    for sentence in comparison.claims:
        say(console, sentence)
    if comparison.signal:
        console.print(INTERRUPTED, highlight=False)
    say(console, f"tables: {comparison.folder}")
