"""The report of a run or comparison that has just ended; an error in it harms neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedtide.analysis.compute import keep_numbers_of
from fedtide.comparison.compare import Comparison
from fedtide.config import Settings
from fedtide.engine.experiment import Experiment
from fedtide.engine.run import Outcome
from fedtide.ground.wording import say
from fedtide.report.make import write_report


def report_run(experiment: Experiment, ended: Outcome, folder: Path, console: Console) -> None:
    """Keep the numbers of a run's clients and write its page, if it did not fail and is to have a report."""

    def make() -> Path:
        keep_numbers_of(experiment, ended, folder)
        return write_report([folder], compute=False, trace=experiment.trace)

    if experiment.settings.report and "failed" not in ended.summary:
        _try(console, make)


def report_comparison(comparison: Comparison, settings: Settings, console: Console) -> None:
    """Write the page of a comparison that has a finished run, if the settings ask for a report."""
    if comparison.rows and settings.report:
        _try(console, lambda: write_report([comparison.folder], compute=False))


def _try(console: Console, make: Callable[[], Path]) -> None:
    """Make a report and print its path; print errors instead of raising them."""
    try:
        path = make()
    except KeyboardInterrupt:
        line = "no report: interrupted; python -m fedtide.report makes it"
    except Exception as error:
        line = f"no report: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        line = f"report: {path}"
    say(console, line)
