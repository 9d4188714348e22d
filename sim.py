"""The command line of flexfl, and the ServerApp of `flwr run`.

python sim.py                                  # handwritten digits; clients come and go
python sim.py --strategy fedavg --num-rounds 20
python sim.py --strategy fedavg mifa --seed 0 1 2   # several values: a comparison
python sim.py --list
python sim.py --show-trace phones --num-clients 100 --num-rounds 300
python sim.py --rehearse examples/fleet.csv         # which method for the devices of this log?
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the imports take seconds: Ctrl-C ends them silently

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from flexfl.config import Settings
from flexfl.config.grid import at_scale, cells, is_comparison
from flexfl.config.settings import read_toml
from flexfl.engine.availability import remember
from flexfl.engine.checkpoints.checkpointing import ResumeError
from flexfl.engine.checkpoints.resume import resumed_settings
from flexfl.engine.comparison.compare import compare
from flexfl.engine.fleet import rehearsal_values
from flexfl.engine.flower_run import run_on_grid
from flexfl.engine.listing import allowed, listing, listing_of
from flexfl.engine.named import check_names, named_parts
from flexfl.engine.rehearsal import rehearse
from flexfl.engine.report.trace_view import show_trace
from flexfl.engine.run import drive, prepare, virtual_transport
from flexfl.engine.run_folder import RunFolder
from flexfl.engine.transports.base import EngineLost
from flexfl.specs import did_you_mean

server_app = ServerApp()


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run under `flwr run`: the settings are the run configuration."""
    run_on_grid(grid, Settings.from_mapping(context.run_config, "run-config"))


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    @property
    def flags(self) -> list[str]:
        """All flags."""
        return [flag for action in self._actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> Parser:
    """Make the parser, with a flag for each setting."""
    parser = Parser(
        prog="sim.py",
        usage="%(prog)s [-h] [--list] [--show-trace SPEC] [--rehearse LOG] [--config FILE.toml] "
        "[--SETTING VALUE ...] ...",
        description="Federated learning where clients come and go.",
        epilog="SPEC is NAME:KEY=VALUE,KEY=VALUE; --list shows all names with their options. A NAME with a "
        "dot is imported: my_methods.Momentum, or flwr.server.strategy.FedAdam. A setting with several "
        "values makes a comparison.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for field in fields(Settings):
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flag, kind = "--" + field.name.replace("_", "-"), type(field.default)
        default = f"default: {field.default}" if field.default not in ("", ()) and kind is not bool else ""
        told = "; ".join(filter(None, (allowed(field), default)))
        text = (field.metadata["help"] + (f" ({told})" if told else "")).replace("%", "%%")
        add = groups[title].add_argument
        if field.name == "option":
            add(flag, action="append", metavar="KEY=VALUE", help=text)
        elif field.name == "log":
            add(flag, metavar="NAME,...", help=text)
        elif kind is bool:
            add(flag, action=argparse.BooleanOptionalAction, help=text, default=None)
        else:
            add(flag, type=kind, nargs="+", metavar=_metavar(field.name, kind), help=text)
    _add_commands(parser)
    return parser


def _add_commands(parser: Parser) -> None:
    """Add the flags that are no settings of a run."""
    parser.add_argument("--config", metavar="FILE.toml", help="settings from a file; flags override them")
    text = "small: as the [small] table of the config file has it, in minutes (default: full)"
    parser.add_argument("--scale", choices=("full", "small"), default="full", help=text)
    text = "in a comparison: also tell what it took to reach this value of the metric, such as 0.8"
    parser.add_argument("--reach", type=float, metavar="VALUE", help=text)
    text = "in a comparison: train cells anew that are finished"
    parser.add_argument("--fresh", action="store_true", help=text)
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the summary as one line of JSON, and all else to standard error",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="list the names that settings accept, with their options, or those given alone, and exit",
    )
    text = "describe which clients take part under this trace, write a page with plots to run-dir, and exit"
    parser.add_argument("--show-trace", metavar="SPEC", help=text)
    text = (
        "compare methods on a log of devices (the trace recorded:file=LOG) and print how to deploy the best"
    )
    parser.add_argument("--rehearse", metavar="LOG", help=text)


def read_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Merge the configuration file and the flags, which override the file; several values are a list.

    Raises
    ------
    ValueError
        A file cannot be read.
    """
    values = read_toml(arguments.config) if arguments.config else {}
    values = at_scale(values, arguments.scale, f"config {arguments.config}" if arguments.config else "scale")
    if arguments.show_trace is not None:
        arguments.trace = [arguments.show_trace]
    for field in fields(Settings):
        given = getattr(arguments, field.name)
        if given is not None:
            single = isinstance(given, list) and len(given) == 1 and field.name != "option"
            values[field.name.replace("_", "-")] = given[0] if single else given
    return values if arguments.rehearse is None else rehearsal_values(arguments.rehearse, values)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = make_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        hint = did_you_mean(flag, parser.flags) if flag else "; settings are written --NAME VALUE"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    console = Console(stderr=arguments.json)
    try:
        values = read_values(arguments)
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


def _metavar(name: str, kind: type) -> str:
    if name in ("strategy", "task", "model", "partition", "sizes", "trace", "lr_schedule", "server_opt"):
        return "SPEC"
    if name == "amplify":
        return "PERIOD,FACTOR"
    if name in ("arrivals", "departures"):
        return "CLIENT=ROUND,..."
    return {int: "INT", float: "FLOAT"}.get(kind, name.partition("_")[2].upper() or name.upper())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
