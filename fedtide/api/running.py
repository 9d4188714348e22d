"""A run with everything around it: progress, loggers, the report."""

from __future__ import annotations

from functools import partial
from typing import Any

from rich.console import Console

from fedtide.config import Settings
from fedtide.engine.checkpoints.checkpointing import ResumeError
from fedtide.engine.experiment import prepare
from fedtide.engine.methods import Method
from fedtide.engine.run import drive, virtual_transport
from fedtide.engine.run_folder import RunFolder
from fedtide.loggers.registry import watching
from fedtide.report.after_run import report_run

__all__ = ["PreparedRun", "ResumeError"]


class PreparedRun:
    """A run before its first round: with its data, its clients and its folder.

    ValueError, MemoryError, EngineLost: there can be no such run.
    """

    def __init__(self, settings: Settings, method: Method, console: Console) -> None:
        self.console, self.experiment = console, prepare(settings, method=method)
        if self.experiment.why_engine:
            engine = self.experiment.settings.engine
            console.print(f"engine: {engine} ({self.experiment.why_engine})", markup=False)
        self.folder = RunFolder(self.experiment.settings)
        try:
            self.transport = virtual_transport(self.experiment, partial(console.print, markup=False))
        except BaseException:
            self.folder.discard()
            raise

    def drive(self) -> dict[str, Any]:
        """Run it, write its report, and return the content of `summary.json`.

        ResumeError: the folder is that of a run that cannot be resumed.
        """
        experiment, console = self.experiment, self.console
        watch = partial(watching, experiment.settings, experiment.data.criterion.metric, console)
        ended = drive(experiment, self.transport, self.folder, console, watch)
        report_run(experiment, ended, self.folder.path, console)
        return ended.summary
