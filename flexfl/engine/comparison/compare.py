"""A comparison: trains the cells that are not finished yet, and writes the table of all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flexfl.config import Settings
from flexfl.config.grid import Cell
from flexfl.engine.comparison import tables
from flexfl.engine.comparison.results import Cost, Estimate, Row, rows_of
from flexfl.engine.comparison.runner import Outcome, run_here, run_on_ray
from flexfl.engine.comparison.store import CellStore, FinishedCell, identity, outdated
from flexfl.engine.interrupts import Stopped, raising_stopped
from flexfl.engine.run_folder import finite, program_version, replacing, slug


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
        An accuracy, 0..1: what it took to get there is in the table.
    fresh
        Train finished cells anew.

    Raises
    ------
    ValueError
        Ray cannot be started, or the folder cannot be written.
    """
    first = cells[0].settings
    store = CellStore(first.run_dir)
    finished: dict[Settings, FinishedCell] = {}
    for cell in cells:
        found = None if fresh else store.load(cell.settings)
        if found is not None:
            finished[cell.settings] = found
    for version, count in outdated(finished).items():
        console.print(
            f"{count} finished cells are of version {version}, this is {program_version()}; "
            "--fresh trains them anew"
        )
    waiting = [cell.settings for cell in cells if cell.settings not in finished]
    failed: dict[Settings, str] = {}
    number = 0
    if waiting:
        with _progress(console, cells, finished) as show:
            report = partial(_note, store, finished, failed, show)
            try:
                with raising_stopped():
                    _run(waiting, report, first)
            except Stopped as stopped:
                number = stopped.number
    folder = _folder(cells)
    rows = rows_of(cells, finished, reach)
    _write(folder, cells, store, rows, reach)
    comparison = Comparison(rows, folder, failed, number)
    _show(console, comparison, len(cells), len(finished), reach)
    if finished and first.report:
        from flexfl.engine.report.after_run import warn  # not needed before
        from flexfl.engine.report.make import write_report

        warn(console, lambda: write_report([folder], compute=False))
    return comparison


def _named(value: Any) -> Any:
    """Return named tuples, also in lists, as dictionaries."""
    if isinstance(value, list):
        return [_named(part) for part in value]
    return value._asdict() if isinstance(value, Estimate | Cost) else value


def _run(waiting: Sequence[Settings], report: Callable[[Settings, Outcome], None], first: Settings) -> None:
    """Run cells: in this process if it is one worker's work, otherwise on Ray."""
    if not first.ray_address and (len(waiting) == 1 or first.num_workers == 1):
        run_here(waiting, report)
    else:
        run_on_ray(waiting, report, first.num_workers, first.client_gpus, first.ray_address)


def _note(
    store: CellStore,
    finished: dict[Settings, FinishedCell],
    failed: dict[Settings, str],
    show: Callable[[Settings, str], None],
    settings: Settings,
    outcome: Outcome,
) -> None:
    """Store what became of a cell."""
    if isinstance(outcome, str):
        failed[settings] = outcome
        show(settings, outcome)
        return
    try:
        store.save(settings, outcome)
        found = store.load(settings)
    except OSError as error:
        failed[settings] = f"cannot be stored: {error.strerror}"
    else:
        if found is None:
            failed[settings] = "its files cannot be read"
        else:
            finished[settings] = found
    show(settings, failed.get(settings, ""))


@contextmanager
def _progress(
    console: Console, cells: Sequence[Cell], finished: Mapping[Settings, FinishedCell]
) -> Iterator[Callable[[Settings, str], None]]:
    """Show how many cells are done, the best so far, and the time left."""
    columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    task = bar.add_task(_best(finished), total=len(cells), completed=len(finished))
    varied = {cell.settings: cell.varied for cell in cells}

    def show(settings: Settings, reason: str) -> None:
        bar.update(task, advance=1, description=_best(finished))
        name = ", ".join(f"{key} {value}" for key, value in varied[settings].items())
        if reason:
            bar.console.print(f"failed: {name}: {reason}", highlight=False, markup=False, soft_wrap=True)
        elif not console.is_terminal:
            final = finished[settings].summary["final"]["accuracy"]
            line = f"{len(finished)}/{len(cells)}  {name}: accuracy {final}"
            bar.console.print(line, highlight=False, markup=False, soft_wrap=True)

    with bar:
        yield show


def _best(finished: Mapping[Settings, FinishedCell]) -> str:
    scores = {s: cell.summary["final"]["accuracy"] for s, cell in finished.items()}
    known = {settings: accuracy for settings, accuracy in scores.items() if accuracy is not None}
    if not known:
        return ""
    best = max(known, key=known.__getitem__)
    return f"best {known[best]:.4f} {best.strategy}"


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
        title = f"{done} of {wanted} runs" if done < wanted else f"{done} runs"
        console.print(tables.terminal([tables.columns(row, reach) for row in comparison.rows], title))
    if comparison.signal:
        console.print("interrupted: the same command goes on where it stopped", highlight=False)
    console.print(f"tables: {comparison.folder}", highlight=False, markup=False, soft_wrap=True)
