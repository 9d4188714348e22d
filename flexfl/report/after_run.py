"""The report of a run or comparison that has just ended; an error in it harms neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from flexfl.engine.experiment import Experiment
from flexfl.engine.read_run import read_run, valid_records
from flexfl.engine.run import Outcome
from flexfl.ground.wording import say
from flexfl.report.client_numbers import keep_numbers
from flexfl.report.clients import compute_numbers
from flexfl.report.make import write_report


def report_run(
    experiment: Experiment, ended: Outcome, folder: Path, console: Console, page: bool = True
) -> None:
    """Keep the numbers of a finished run's clients, and write its page, if the settings ask for a report.

    Parameters
    ----------
    experiment, ended
        The run and its outcome; a run that failed gets no report.
    folder
        Of the run.
    console
        Where to print the path of the page, or an error.
    page
        Whether to write the page; otherwise only the numbers for a later one are kept.
    """

    def make() -> Path:
        if not read_run(folder).problem:
            made = (experiment.data, experiment.trace, experiment.build_model())
            numbers = compute_numbers(experiment.settings, *made, ended.arrays, valid_records(folder))
            keep_numbers(folder, numbers)
        return write_report([folder], compute=False, trace=experiment.trace) if page else folder

    if experiment.settings.report and "failed" not in ended.summary:
        _try(console, make, show=page)


def report_comparison(folder: Path, console: Console) -> None:
    """Write the page of a comparison."""
    _try(console, lambda: write_report([folder], compute=False))


def _try(console: Console, make: Callable[[], Path], show: bool = True) -> None:
    """Make a report and print its path if `show`; print errors instead of raising them."""
    try:
        path = make()
    except KeyboardInterrupt:
        line = "no report: interrupted; python -m flexfl.report makes it"
    except Exception as error:
        line = f"no report: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        line = f"report: {path}" if show else ""
    if line:
        say(console, line)
