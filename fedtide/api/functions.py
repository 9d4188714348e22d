"""`run`, `compare` and `load`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtide.api.running import PreparedRun, cells_of, compare_and_report
from fedtide.api.values import setting_values
from fedtide.base import dotted
from fedtide.base.display import display
from fedtide.base.errors import RunError, SettingsError
from fedtide.base.wording import new_console, say
from fedtide.comparison.compare import Request
from fedtide.comparison.comparison import CELLS, Comparison
from fedtide.comparison.results import CellRun, parse_targets
from fedtide.comparison.tuning import Tuning
from fedtide.config.grid import TUNE_TRIALS
from fedtide.engine.checkpoints.resume import needs_trust, settings_of
from fedtide.engine.interrupts import Stopped
from fedtide.engine.read_run import Run, read_run
from fedtide.engine.transports.base import EngineLost
from fedtide.report.subject import read_subject


def run(*, progress: bool = True, trust: bool = False, **settings: Any) -> Run:
    """Simulate a federation, as `sim.py` does on the command line, with the same results.

    Parameters
    ----------
    progress
        Show a progress bar and the results.
    trust
        Import the parts outside of fedtide that the folder to `resume` names.
    **settings
        The settings of the command line with underscores, `num_clients=100` for `--num-clients 100`; those
        left out have their defaults. Parts may be objects instead of names: `strategy` a class, `model` a
        class or function that makes a `torch.nn.Module`, `trace` a `Trace`, `task` a `Task`, `metrics` a list
        of names and functions.

    Raises
    ------
    SettingsError
        The settings are invalid.
    RunError
        The run could not go on.
    KeyboardInterrupt
        It was interrupted; `run(resume=FOLDER)` with the folder in the message continues it, bit for bit.
    """
    console = new_console(quiet=not progress)
    with display():
        with _own_errors():
            values = setting_values(settings)
            chosen = settings_of(values, "run", trust)
            prepared = PreparedRun(chosen, console)
        summary = prepared.drive()
    folder = prepared.folder.path
    call = f"fedtide.run(resume={str(folder)!r}{', trust=True' if needs_trust(chosen) else ''})"
    if "failed" in summary:
        raise RunError(f"{summary['failed']}; resume with {call}")
    if prepared.signals:
        raise KeyboardInterrupt(f"resume with {call}")
    return read_run(folder.absolute(), records=True)


def compare(
    *,
    reach: float | str | Sequence[float | str] = (),
    fresh: bool = False,
    tune: Sequence[str] = (),
    tune_trials: int = TUNE_TRIALS,
    tune_for: str = "",
    tune_seeds: int = 1,
    baseline: str = "",
    progress: bool = True,
    **settings: Any,
) -> Comparison:
    """Run all combinations of settings that have several values, in processes side by side.

    Runs that are finished already, here or on the command line, are not repeated, unless a part of theirs has
    changed: its code, what that refers to, its numbers, or a file that it names. What cannot be compared with
    what it was, such as an open file, counts as changed.

    Parameters
    ----------
    reach
        A value of the metric, such as 0.8, or a target such as ``"loss=0.5"``, or several: the table has the
        cost of reaching each. By default, the `stop_at` of the runs.
    fresh
        Train finished runs again.
    tune
        What is searched for each method before it is compared, as texts: ``"learning-rate=0.01..1"``,
        ``"option.mu=0.001|0.01|0.1"``. Runs that differ in the seed only share the best values. Needs Optuna.
    tune_trials
        Trials of each search.
    tune_for
        Which of `metrics` is searched for, such as ``"f1_score_macro"``; default: the task's own metric.
    tune_seeds
        Seeds over which the score of a trial is the mean.
    baseline
        What the others are compared to, such as ``"strategy=fedavg,round-ends=0"``; what it leaves out is as
        in each of them. By default, the first method.
    progress
        Show a progress bar and the table.
    **settings
        As for `run`; a list is several values. `cell` is a list of dictionaries, settings that go together.

    Raises
    ------
    SettingsError
        The settings are invalid.
    RunError
        Some runs failed; the others are kept.
    KeyboardInterrupt
        It was interrupted; the same call continues it.
    """
    console = new_console(quiet=not progress)

    def unknown(part: str) -> None:
        say(console, f"{part}: not all of it can be compared with other calls: its runs are not reused")

    with _own_errors(), display():
        tables = settings.pop("cell", None)
        values = setting_values(settings, unknown)
        if tables is not None:
            values["cell"] = [setting_values(table, unknown) for table in tables]
        combinations = cells_of(values, "compare")
        wanted = setting_values({"reach": reach})["reach"]
        targets = parse_targets(wanted if isinstance(wanted, list) else [wanted])
        tuning = Tuning.parse(tune, tune_trials, tune_for, tune_seeds) if tune else None
        done = compare_and_report(Request(combinations, targets, fresh, tuning, baseline), console)
    if done.signal:
        raise KeyboardInterrupt("the same call continues the comparison")
    if done.failed:
        reasons = [f"{s.strategy} seed {s.seed}: {reason}" for s, reason in done.failed.items()]
        raise RunError(f"{len(reasons)} of {len(combinations)} runs failed: {'; '.join(reasons)}")
    runs = [CellRun(cell, replace(run, path=run.path.absolute())) for cell, run in done.runs]
    return replace(done, runs=runs, folder=done.folder.absolute())


def load(folder: str | os.PathLike[str], *, trust: bool = False) -> Run | Comparison:
    """Read the folder of a run or of a comparison, also of the command line, finished or not.

    Parameters
    ----------
    folder
        The folder. To read it executes nothing.
    trust
        Let `Run.model` import the parts outside of fedtide that the folder names.

    Raises
    ------
    SettingsError
        It is neither.
    """
    path = Path(folder).absolute()
    if not os.path.exists(path / CELLS):
        return read_run(path, trust, records=True)
    found = read_subject([path], trust)
    return replace(found, runs=[CellRun(cell, run.with_records()) for cell, run in found.runs])


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what is nobody's mistake as an error of this interface."""
    try:
        yield
    except SettingsError as error:
        error.args = (dotted.shown(str(error)),)
        raise
    except EngineLost as error:
        raise RunError(str(error)) from None
    except Stopped as stopped:
        raise KeyboardInterrupt(f"interrupted by {stopped}") from None
    except MemoryError as error:
        raise SettingsError(f"not enough memory: {error}") from None
