"""A comparison: trains the cells that are not finished yet, and writes the table of all."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from flexfl.comparison import tables
from flexfl.comparison.results import Cost, Estimate, Row, rows_of
from flexfl.comparison.runner import Outcome, run_here, run_on_ray
from flexfl.comparison.store import CellStore, Place, identity, outdated
from flexfl.config import Settings
from flexfl.config.grid import Cell
from flexfl.engine.interrupts import ENDING, Stopped, deferring, raising_stopped
from flexfl.engine.observers import LoggedRun
from flexfl.engine.parts import require_ray
from flexfl.engine.read_run import Run
from flexfl.engine.run_folder import finite, program_version, slug
from flexfl.ground.files import replacing
from flexfl.ground.wording import count, say
from flexfl.loggers.progress import progress_bar
from flexfl.loggers.registry import log_finished, logger_types
from flexfl.tasks import Metric


@dataclass(frozen=True)
class Comparison:
    """What a comparison ended with.

    Attributes
    ----------
    rows
        The results of the cells that are finished.
    folder
        Where the tables lie.
    failed
        Why cells failed.
    signal
        Number of the signal that ended it early; 0: none did.
    """

    rows: Sequence[Row]
    folder: Path
    failed: Mapping[Settings, str]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """0 if all cells are finished, 1 if some failed, 128 and the signal's number if one ended it."""
        return 128 + self.signal if self.signal else int(bool(self.failed))

    def as_json(self) -> dict[str, Any]:
        """Return the rows and what failed, for `--json`."""
        rows = [{key: _named(value) for key, value in vars(row).items()} for row in self.rows]
        failed = {f"{s.strategy} seed {s.seed}": reason for s, reason in self.failed.items()}
        shown: dict[str, Any] = finite({"rows": rows, "failed": failed, "folder": str(self.folder)})
        return shown | {"interrupted": bool(self.signal)}


def compare(
    cells: Sequence[Cell], console: Console, reach: float | None = None, fresh: bool = False
) -> Comparison:
    """Train the cells that are not finished yet, and write the table of all.

    Parameters
    ----------
    cells
        The runs; all have the same `run_dir` and workers.
    console
        Where to show progress and the table.
    reach
        A value of the metric, such as 0.8: what it took to get there is in the table.
    fresh
        Train finished cells again.

    Raises
    ------
    ValueError
        Ray cannot be started, or the folder cannot be written.
    """
    first = cells[0].settings
    logger_types(first)
    store = CellStore(first.run_dir)
    _check_different(cells, store)
    finished: dict[Settings, Run] = {}
    for cell in cells:
        if fresh:
            store.discard(cell.settings)
        found = None if fresh else store.load(cell.settings)
        if found is not None:
            finished[cell.settings] = found
    for version, old in outdated(finished).items():
        console.print(
            f"{count(old, 'finished cell')} of version {version}, this is {program_version()}; "
            "--fresh trains them again"
        )
    folder = _folder(cells)
    waiting = [cell.settings for cell in cells if cell.settings not in finished]
    failed: dict[Settings, str] = {}
    number = 0
    if waiting:
        with _progress(console, cells, finished) as show:
            log = partial(_log, {cell.settings: cell for cell in cells}, folder, console)
            report = partial(_note, store, finished, failed, show, log)
            try:
                with raising_stopped():
                    _run(waiting, report, {cell: store.place(cell) for cell in waiting}, first)
            except Stopped as stopped:
                number = stopped.number
    rows = rows_of(cells, finished, reach)
    _write(folder, cells, store, rows, reach)
    comparison = Comparison(rows, folder, failed, number)
    _show(console, comparison, len(cells), len(finished), reach)
    return comparison


def _named(value: Any) -> Any:
    """Return named tuples, also in lists, as dictionaries."""
    if isinstance(value, list):
        return [_named(part) for part in value]
    if isinstance(value, Metric):
        return value.key
    return value._asdict() if isinstance(value, Estimate | Cost) else value


def _run(
    waiting: Sequence[Settings],
    report: Callable[[Settings, Outcome], None],
    places: Mapping[Settings, Place],
    first: Settings,
) -> None:
    """Run cells: in this process if it is one worker's work, otherwise on Ray."""
    if not first.ray_address and (len(waiting) == 1 or first.num_workers == 1):
        run_here(waiting, report, places)
    else:
        require_ray("take --num-workers 1")
        run_on_ray(waiting, report, places, first.num_workers, first.client_gpus, first.ray_address)


def _note(
    store: CellStore,
    finished: dict[Settings, Run],
    failed: dict[Settings, str],
    show: Callable[[Settings, str], None],
    log: Callable[[Settings, Run], None],
    settings: Settings,
    outcome: Outcome,
) -> None:
    """Store what became of a cell, and log it."""
    if isinstance(outcome, str):
        failed[settings] = outcome
        show(settings, outcome)
        return
    with deferring(*ENDING) as signals:  # what is finished is kept
        try:
            store.save(settings, outcome)
            found = store.load(settings)
        except OSError as error:
            failed[settings] = f"cannot be stored: {error.strerror}"
        else:
            if found is None:
                failed[settings] = (
                    "its files cannot be read, or one that its settings name has changed meanwhile"
                )
            else:
                finished[settings] = found
    if signals:
        raise Stopped(signals[0])
    show(settings, failed.get(settings, ""))
    if settings in finished:
        log(settings, finished[settings])


def _log(
    cells: Mapping[Settings, Cell], folder: Path, console: Console, settings: Settings, found: Run
) -> None:
    """Log a cell as a run of its own, whose name is what varies; only once it is finished."""
    name = ", ".join(f"{key}={value}" for key, value in cells[settings].varied.items()) or settings.strategy
    files = folder / "logs" / f"{slug([name], 100)}-{identity(settings)}"
    shutil.rmtree(files, ignore_errors=True)  # of a run that was trained again
    run = LoggedRun(name, files, folder.parent, folder.name)
    log_finished(settings, found.records, found.summary, run, console)


def _check_different(cells: Sequence[Cell], store: CellStore) -> None:
    """Refuse cells that are the same run, as what varies does not change the result."""
    known: dict[Path, Cell] = {}
    for cell in cells:
        other = known.setdefault(store.path(cell.settings), cell)
        if other is not cell:
            here, there = (cell.settings.as_mapping(), other.settings.as_mapping())
            keys = ", ".join(key for key in here if here[key] != there[key])
            raise ValueError(f"{keys}: give one value, as it does not change the results of a comparison")


@contextmanager
def _progress(
    console: Console, cells: Sequence[Cell], finished: Mapping[Settings, Run]
) -> Iterator[Callable[[Settings, str], None]]:
    """Show how many cells are done, the best so far, and the time left."""
    bar = progress_bar("", console)
    task = bar.add_task(_best(finished), total=len(cells), completed=len(finished))
    varied = {cell.settings: cell.varied for cell in cells}

    def show(settings: Settings, reason: str) -> None:
        bar.update(task, advance=1, description=_best(finished))
        name = ", ".join(f"{key} {value}" for key, value in varied[settings].items())
        if reason:
            say(bar.console, f"failed: {name}: {reason}")
        elif not console.is_terminal:
            found = finished[settings]
            line = f"{len(finished)}/{len(cells)}  {name}: {found.metric.title} {found.final:g}"
            say(bar.console, line)

    with bar:
        yield show


def _best(finished: Mapping[Settings, Run]) -> str:
    known = {s: cell for s, cell in finished.items() if not math.isnan(cell.final)}
    if len({cell.metric for cell in known.values()}) != 1:  # there is nothing to compare
        return ""
    best = max(known, key=lambda s: known[s].final * (1 if known[s].metric.higher_is_better else -1))
    return f"best {known[best].final:.4f} {best.strategy}"


def _folder(cells: Sequence[Cell]) -> Path:
    """Return the comparison's folder; its name follows from what varies and from what does not."""
    varied = tuple(cells[0].varied)
    settings = cells[0].settings
    return (
        Path(settings.run_dir) / f"compare-{slug((settings.task, *varied), 80)}-{identity(settings, varied)}"
    )


def _write(
    folder: Path, cells: Sequence[Cell], store: CellStore, rows: Sequence[Row], reach: float | None
) -> None:
    """Write the tables, and where the cells lie."""
    shown = [tables.columns(row, reach) for row in rows]
    index = [
        {**cell.varied, "folder": str(store.path(cell.settings))}
        | ({} if cell.paper is None else {"paper": cell.paper})
        for cell in cells
    ]
    content = {
        "table.md": tables.markdown(shown),
        "table.tex": tables.latex(shown),
        "table.csv": tables.comma_separated(rows),
        "cells.json": json.dumps(index, indent=2) + "\n",
        "comparison.json": json.dumps({"command": sys.argv, "reach": reach}, indent=2) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in content.items():
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"run-dir {folder.parent}: {error.strerror}") from None


def _show(console: Console, comparison: Comparison, wanted: int, done: int, reach: float | None) -> None:
    """Print the table."""
    if comparison.rows:
        title = f"{done} of {count(wanted, 'run')}" if done < wanted else count(done, "run")
        shown = [tables.columns(row, reach) for row in comparison.rows]
        console.print(tables.terminal(shown, title, console.width))
    if reach is not None and reach > 1 and all(row.metric.is_share for row in comparison.rows):
        console.print(f"reach is {reach:g}, but no share is above 1: 80 % is 0.8", highlight=False)
    if comparison.signal:
        console.print("interrupted; rerun the command to continue", highlight=False)
    say(console, f"tables: {comparison.folder}")
