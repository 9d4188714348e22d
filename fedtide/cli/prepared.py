"""A run of the command line."""

from __future__ import annotations

import json
import signal
from functools import partial

from rich.console import Console

from fedtide.cli.flags import Parser
from fedtide.config import Settings
from fedtide.engine.checkpoints.checkpointing import ResumeError
from fedtide.engine.experiment import prepare
from fedtide.engine.methods import Method
from fedtide.engine.run import drive, virtual_transport
from fedtide.engine.run_folder import RunFolder
from fedtide.loggers.registry import watching
from fedtide.report.after_run import report_run


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

    def drive(self, parser: Parser, as_json: bool) -> int:
        """Run it; return the exit code. `as_json` prints the summary."""
        experiment, console = self.experiment, self.console
        watch = partial(watching, experiment.settings, experiment.data.criterion.metric, console)
        try:
            ended = drive(experiment, self.transport, self.folder, console, watch)
        except ResumeError as error:
            parser.error(" ".join(str(error).split()))
        report_run(experiment, ended, self.folder.path, console)
        summary = ended.summary
        if as_json:
            print(json.dumps(summary))
        if "failed" in summary:
            return 1
        if summary["interrupted"]:
            return 128 + signal.Signals[summary["signal"]]
        return 3 if summary["no_reply_counted"] else 0
