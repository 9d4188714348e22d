"""What the command line does: list, show a trace, or what trains: compare, rehearse, or run an experiment."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from fedtide.api.running import PreparedRun, cells_of, compare_and_report
from fedtide.base.display import OutputLost, display
from fedtide.base.errors import SettingsError
from fedtide.base.wording import new_console, say
from fedtide.cli.flags import Parser, read_values
from fedtide.cli.fleet import rehearsal_values
from fedtide.cli.listing import listing, listing_of
from fedtide.comparison.compare import INTERRUPTED, Request
from fedtide.comparison.results import parse_targets
from fedtide.comparison.tuning import Tuning
from fedtide.config.grid import is_comparison
from fedtide.engine.checkpoints.resume import flags, settings_of
from fedtide.engine.interrupts import Stopped
from fedtide.engine.transports.base import EngineLost
from fedtide.plan import named_parts


def execute(parser: Parser, arguments: argparse.Namespace, imported: Callable[[], object]) -> int:
    """Do what the command line says; return the exit code.

    The parser reports errors, in one line, and exits; `imported` is called when all slow imports are done.
    """
    console = new_console(stderr=arguments.json)
    try:
        values = read_values(arguments)
        if arguments.rehearse is not None:
            values = rehearsal_values(arguments.rehearse, values)
        if arguments.list:
            named = list(named_parts(values))
            print("\n".join(listing_of(named) if named else listing()))
            return 0
        of_search = ("tune_trials", "tune_seeds", "tune_for")
        given = [name for name in of_search if getattr(arguments, name) != parser.get_default(name)]
        if given and not arguments.tune:
            raise SettingsError(f"{given[0].replace('_', '-')} is for --tune")
        if is_comparison(values) or arguments.rehearse is not None or arguments.tune:
            if values.get("resume") or arguments.trust:
                advice = "rerun the same command to continue a comparison"
                raise SettingsError(f"resume is for single runs, and so is trust; {advice}")
            imported()
            return _compare(values, arguments, console)
        if arguments.reach is not None or arguments.fresh or arguments.baseline:
            what = "reach, fresh and baseline are for comparisons"
            raise SettingsError(f"{what}: give a setting several values")
        source = arguments.config or "command line"
        settings = settings_of(values, source, arguments.trust)
        if arguments.show_trace is not None:
            from fedtide.report.trace import show_trace

            imported()
            report = show_trace(settings, console)
            if arguments.json:
                print(json.dumps(report))
            return 0
        with display():
            run = PreparedRun(settings, console, imported)
            summary = run.drive()
    except SettingsError as error:
        parser.error(str(error))
    except MemoryError as error:
        parser.error(f"not enough memory: {error}")
    except EngineLost as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except Stopped as stopped:
        parser.exit(128 + stopped.number, f"{parser.prog}: interrupted before the first round\n")
    with display():
        if summary["interrupted"]:
            resume = flags(run.folder.path, settings)
            say(console, f"interrupted: {parser.command} {resume} continues the run")
        elif not values and console.is_terminal and "failed" not in summary:
            _show_what_next(parser.command, run.folder.path, console)
    code = 3 if summary["no_reply_counted"] else 0
    if run.signals:
        code = 128 + run.signals[0]
    if "failed" in summary:
        code = 1
    return _print_json(summary, arguments.json, code)


def _print_json(value: object, wanted: bool, code: int) -> int:
    """Print what `--json` asks for; return the exit code, which counts for more than lost output."""
    try:
        if wanted:
            print(json.dumps(value))
    except OutputLost:
        if not code:
            raise
    return code


def _show_what_next(command: str, folder: Path, console: Console) -> None:
    """Tell a newcomer, who ran the command without arguments, how to see the report and what to try."""
    say(console, f"see it: {'open' if sys.platform == 'darwin' else 'xdg-open'} {folder}/report.html")
    say(console, f"next:   {command} --strategy fedavg mifa --partition label --trace bernoulli:p=0.3")


def _compare(values: dict[str, Any], arguments: argparse.Namespace, console: Console) -> int:
    """Run all cells of a comparison, or of a rehearsal; return the exit code."""
    if arguments.show_trace is not None:
        raise SettingsError("show-trace: give one value per setting")
    reach = parse_targets(arguments.reach or ())
    cells = cells_of(values, arguments.config or "command line")
    of_search = (arguments.tune_trials, arguments.tune_for, arguments.tune_seeds)
    tuning = Tuning.parse(arguments.tune, *of_search) if arguments.tune else None
    request = Request(cells, reach, arguments.fresh, tuning, arguments.baseline)
    from fedtide.cli.rehearsal import rehearse  # which --help and --list do without

    run = compare_and_report if arguments.rehearse is None else rehearse
    with display():
        try:
            done = run(request, console)
        except Stopped as stopped:
            console.print(INTERRUPTED, highlight=False)
            return 128 + stopped.number
    return _print_json(done.as_json(), arguments.json, done.exit_code)
