"""A run of the command line."""

from __future__ import annotations

import json
import signal
from functools import partial

from rich.console import Console

from flexfl.cli.flags import Parser
from flexfl.config import Settings
from flexfl.engine.availability import remember
from flexfl.engine.checkpoints.checkpointing import ResumeError
from flexfl.engine.run import drive, prepare, virtual_transport
from flexfl.engine.run_folder import RunFolder


class PreparedRun:
    """A run before its first round: with its data, its clients and its folder.

    Parameters
    ----------
    settings
        Of the run.
    console
        Where it is told of.

    Raises
    ------
    ValueError, MemoryError, EngineLost
        There can be no such run.
    """

    def __init__(self, settings: Settings, console: Console) -> None:
        self.console, self.experiment = console, prepare(settings)
        if self.experiment.why_engine:
            engine = self.experiment.settings.engine
            console.print(f"engine: {engine} ({self.experiment.why_engine})", markup=False)
        self.availability = remember(self.experiment.trace)
        self.folder = RunFolder(self.experiment.settings)
        tell = partial(console.print, markup=False)
        try:
            self.transport = virtual_transport(self.experiment, self.availability, tell)
        except BaseException:
            self.folder.discard()
            raise

    def drive(self, parser: Parser, as_json: bool) -> int:
        """Run it; return the exit code.

        Parameters
        ----------
        parser
            Reports errors, in one line, and exits.
        as_json
            Whether the summary is printed.
        """
        try:
            summary = drive(self.experiment, self.transport, self.availability, self.folder, self.console)
        except ResumeError as error:
            parser.error(" ".join(str(error).split()))
        if as_json:
            print(json.dumps(summary))
        if "failed" in summary:
            return 1
        if summary["interrupted"]:
            return 128 + signal.Signals[summary["signal"]]
        return 3 if summary["no_reply_counted"] else 0
