"""The report of a run that has just ended: nothing of it can harm the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console

from flexfl.engine.experiment import Experiment
from flexfl.ground.wording import say
from flexfl.report.client_numbers import keep_numbers
from flexfl.report.clients import compute_numbers
from flexfl.report.make import write_report
from flexfl.report.reading import read_run
from flexfl.report.records import records_of


def report_run(
    experiment: Experiment, arrays: Sequence[NDArray[Any]], folder: Path, console: Console, page: bool
) -> None:
    """Keep the numbers of the clients of a finished run, and write its page.

    Parameters
    ----------
    experiment
        The run.
    arrays
        The final weights, one array per tensor.
    folder
        Of the run.
    console
        Where to say where the page is, or what went wrong.
    page
        Whether to write it.
    """

    def make() -> Path:
        if not read_run(folder).ended:
            made = (experiment.data, experiment.trace, experiment.build_model())
            keep_numbers(folder, compute_numbers(experiment.settings, *made, arrays, records_of(folder)))
        return write_report([folder], compute=False, trace=experiment.trace) if page else folder

    warn(console, make, tell=page)


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
