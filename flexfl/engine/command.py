"""What the command line does: list, show a trace, compare, rehearse, or run an experiment."""

from __future__ import annotations

import argparse
import json
import math
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich.console import Console

from flexfl.config import Settings
from flexfl.config.grid import cells, is_comparison
from flexfl.engine.availability import remember
from flexfl.engine.checkpoints.checkpointing import ResumeError
from flexfl.engine.checkpoints.resume import resumed_settings
from flexfl.engine.comparison.compare import compare
from flexfl.engine.flags import Parser, read_values
from flexfl.engine.fleet import rehearsal_values
from flexfl.engine.listing import listing, listing_of
from flexfl.engine.named import check_names, named_parts
from flexfl.engine.rehearsal import rehearse
from flexfl.engine.report.trace_view import show_trace
from flexfl.engine.run import drive, prepare, virtual_transport
from flexfl.engine.run_folder import RunFolder
from flexfl.engine.transports.base import EngineLost


def execute(parser: Parser, arguments: argparse.Namespace) -> int:
    """Do what the command line says; return the exit code.

    Parameters
    ----------
    parser
        Reports errors, in one line, and exits.
    arguments
        What it has read.
    """
    console = Console(stderr=arguments.json)
    try:
        values = read_values(arguments)
        if arguments.rehearse is not None:
            values = rehearsal_values(arguments.rehearse, values)
        if arguments.list:
            named = list(named_parts(values))
            print("\n".join(listing_of(named) if named else listing()))
            return 0
        if is_comparison(values) or arguments.rehearse is not None:
            if values.get("resume"):
                raise ValueError("resume belongs to a single run; a comparison goes on by the same command")
            return run_comparison(values, arguments, console)
        if arguments.reach is not None or arguments.fresh:
            raise ValueError("reach and fresh belong to a comparison: give a setting several values")
        settings = settings_of(values, arguments.config or "command line")
        if arguments.show_trace is not None:
            report = show_trace(settings, console)
            if arguments.json:
                print(json.dumps(report))
            return 0
        experiment = prepare(settings)
        if experiment.why_engine:
            console.print(f"engine: {experiment.settings.engine} ({experiment.why_engine})", markup=False)
        availability = remember(experiment.trace)
        folder = RunFolder(experiment.settings)
        try:
            transport = virtual_transport(experiment, availability, partial(console.print, markup=False))
        except BaseException:
            folder.discard()
            raise
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    except MemoryError as error:
        parser.error(f"not enough memory: {error}")
    except EngineLost as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted before the first round\n")
    try:
        summary = drive(experiment, transport, availability, folder, console)
    except ResumeError as error:
        parser.error(" ".join(str(error).split()))
    if arguments.json:
        print(json.dumps(summary))
    if "failed" in summary:
        return 1
    if summary["interrupted"]:
        return 128 + signal.Signals[summary["signal"]]
    return 3 if summary["no_reply_counted"] else 0


def settings_of(values: Mapping[str, Any], source: str) -> Settings:
    """Return the settings of a run, which may be one that goes on.

    Raises
    ------
    ValueError
        A setting is unknown or invalid, or another one than the run had.
    """
    if values.get("resume"):
        return resumed_settings(values, source)
    return Settings.from_mapping(values, source)


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
