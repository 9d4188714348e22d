"""Runs and comparisons with everything around them: progress, loggers, the report.

PyTorch, which takes seconds to import, is imported once the settings are checked, and not by comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from fedtide.base.wording import say
from fedtide.comparison.compare import Request, compare
from fedtide.comparison.comparison import Comparison
from fedtide.config import Settings
from fedtide.config.grid import Cell, cells
from fedtide.engine.interrupts import deferring, finishing, stopping_on_interrupt
from fedtide.engine.run_folder import RunFolder
from fedtide.engine.transports.ray import require_ray
from fedtide.loggers.registry import logger_types, watching
from fedtide.plan import Plan


class PreparedRun:
    """A run before its first round: with its data, its clients and its folder.

    `imported` is called when all slow imports are done. ValueError, MemoryError, EngineLost: there can be no
    such run.
    """

    def __init__(
        self, settings: Settings, console: Console, imported: Callable[[], object] = lambda: None
    ) -> None:
        plan = Plan.of(settings)
        if settings.engine == "ray":
            require_ray("take --engine inline")
        logger_types(settings.log)
        from fedtide.engine.experiment import prepare
        from fedtide.engine.run import virtual_transport

        imported()
        self.console, self.experiment = console, prepare(plan)
        if self.experiment.why_engine:
            engine = self.experiment.settings.engine
            console.print(f"engine: {engine} ({self.experiment.why_engine})", markup=False)
        for line in filter(None, [self.experiment.hint, self.experiment.room]):
            say(console, line)
        self.folder = RunFolder(self.experiment.plan)
        try:
            self.transport = virtual_transport(self.experiment, partial(say, console))
        except BaseException:
            self.folder.discard()
            raise
        rate = f"{plan.settings.learning_rate:g} (for {plan.model_name})"
        self._first_line = "" if settings.learning_rate else f"learning-rate: {rate}"

    def drive(self) -> dict[str, Any]:
        """Run it, write its report, and return the content of `summary.json`; `signals` has those it got.

        One before the first round ends it there, and one after the last changes nothing but the exit code.
        ResumeError: the folder is that of a run that cannot be resumed.
        """
        from fedtide.engine.run import drive

        experiment, console = self.experiment, self.console
        watch = partial(watching, experiment.settings.log, experiment.data.criterion.metric, console)
        with deferring() as self.signals:
            if self._first_line:
                say(console, self._first_line)
            stopping = partial(stopping_on_interrupt, signals=self.signals)
            ended = drive(experiment, self.transport, self.folder, console, watch, stopping)
            from fedtide.report.make import report_run

            with finishing(self.signals):
                report_run(experiment, ended, self.folder.path, console)
        return ended.summary


def cells_of(values: Mapping[str, Any], source: str) -> list[Cell]:
    """Return the cells of a comparison, as `cells` does; ValueError: also if one of them cannot run."""
    found = cells(values, source)
    for cell in found:
        Plan.of(cell.settings)
    return found


def compare_and_report(request: Request, console: Console) -> Comparison:
    """Run a comparison and write its page; see `compare`."""
    comparison = compare(request, console)
    from fedtide.report.make import report_comparison

    signals = [comparison.signal] if comparison.signal else []
    with finishing(signals):
        report_comparison(comparison, request.cells[0].settings, console)
    return replace(comparison, signal=signals[0]) if signals else comparison
