"""The commands that train: a run, a comparison, a rehearsal."""

from __future__ import annotations

import argparse
import json
import math
import signal
from functools import partial
from typing import Any

from rich.console import Console

from flexfl.config import Settings
from flexfl.config.grid import cells
from flexfl.engine.availability import remember
from flexfl.engine.checkpoints.checkpointing import ResumeError
from flexfl.engine.comparison.compare import compare
from flexfl.engine.flags import Parser
from flexfl.engine.named import check_names
from flexfl.engine.rehearsal import rehearse
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


def run_comparison(values: dict[str, Any], arguments: argparse.Namespace, console: Console) -> int:
    """Run all cells of a comparison, or of a rehearsal; return the exit code.

    Raises
    ------
    ValueError
        A setting is unknown or invalid.
    """
    if arguments.show_trace is not None:
        raise ValueError("show-trace: give one value for each setting")
    if arguments.reach is not None and not 0 <= arguments.reach < math.inf:
        raise ValueError(f"reach is {arguments.reach}; it must be a number of at least 0")
    of_comparison = cells(values, arguments.config or "command line")
    for cell in of_comparison:
        check_names(cell.settings)  # before anything runs
    run = compare if arguments.rehearse is None else rehearse
    done = run(of_comparison, console, arguments.reach, arguments.fresh)
    if arguments.json:
        print(json.dumps(done.as_json()))
    return done.exit_code
