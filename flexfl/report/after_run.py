"""The report of a run that has just ended: nothing of it can harm the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from flexfl.engine.experiment import Experiment
from flexfl.engine.run import Outcome
from flexfl.ground.wording import say
from flexfl.report.client_numbers import keep_numbers
from flexfl.report.clients import compute_numbers
from flexfl.report.make import write_report
from flexfl.report.reading import read_run
from flexfl.report.records import records_of


def report_run(
    experiment: Experiment, ended: Outcome, folder: Path, console: Console, page: bool = True
) -> None:
    """Keep the numbers of the clients of a finished run, and write its page, if the settings ask for it.

    Parameters
    ----------
    experiment, ended
        The run, and how it ended; of one that failed there is no report.
    folder
        Of the run.
    console
        Where to say where the page is, or what went wrong.
    page
        Whether to write it; otherwise only the numbers that a later one needs are kept.
    """

    def make() -> Path:
        if not read_run(folder).ended:
            made = (experiment.data, experiment.trace, experiment.build_model())
            numbers = compute_numbers(experiment.settings, *made, ended.arrays, records_of(folder))
            keep_numbers(folder, numbers)
        return write_report([folder], compute=False, trace=experiment.trace) if page else folder

    if experiment.settings.report and "failed" not in ended.summary:
        warn(console, make, tell=page)


def report_comparison(folder: Path, console: Console) -> None:
    """Write the page of a comparison."""
    warn(console, lambda: write_report([folder], compute=False))


def warn(console: Console, make: Callable[[], Path], tell: bool = True) -> None:
    """Make a report; whatever goes wrong is one line on the console, and no error."""
    try:
        path = make()
    except KeyboardInterrupt:
        line = "no report: interrupted; python -m flexfl.report makes it"
    except Exception as error:
        line = f"no report: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if not tell:
            return
        line = f"report: {path}"
    say(console, line)
