"""The command line of flexfl, and the ServerApp of `flwr run`.

python sim.py                                  # handwritten digits; clients come and go
python sim.py --strategy fedavg --num-rounds 20
python sim.py --strategy fedavg mifa --seed 0 1 2   # several values: a comparison
python sim.py --list
python sim.py --show-trace phones --num-clients 100 --num-rounds 300
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from flexfl.config import Settings
from flexfl.config.grid import cells, is_comparison
from flexfl.config.settings import read_toml
from flexfl.engine.availability import remember
from flexfl.engine.comparison.compare import compare
from flexfl.engine.flower_run import run_on_grid
from flexfl.engine.listing import REGISTRIES, listing
from flexfl.engine.report.trace_view import show_trace
from flexfl.engine.run import drive, prepare, strategy_options, virtual_transport
from flexfl.engine.run_folder import RunFolder

server_app = ServerApp()


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Run under `flwr run`: the settings are the run configuration."""
    run_on_grid(grid, Settings.from_mapping(context.run_config, "run-config"))


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> Parser:
    """Make the parser, with a flag for each setting."""
    parser = Parser(
        prog="sim.py",
        description="Federated learning where clients come and go.",
        epilog="SPEC is NAME:KEY=VALUE,KEY=VALUE; --list shows all names with their options.",
        allow_abbrev=False,
    )
    for field in fields(Settings):
        flag, kind = "--" + field.name.replace("_", "-"), type(field.default)
        text = field.metadata["help"].replace("%", "%%")
        if field.name == "cohort":
            text += f"; one of {', '.join(REGISTRIES[flag])}"
        if field.name == "option":
            parser.add_argument(flag, action="append", metavar="KEY=VALUE", help=text)
        elif kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text, default=None)
        else:
            shown = f" (default: {field.default})" if field.default != "" else ""
            metavar = _metavar(field.name, kind)
            parser.add_argument(flag, type=kind, nargs="+", metavar=metavar, help=text + shown)
    parser.add_argument("--config", metavar="FILE.toml", help="settings from a file; flags override them")
    text = "in a comparison: also tell what it took to reach this accuracy, 0..1"
    parser.add_argument("--reach", type=float, metavar="ACCURACY", help=text)
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
        help="list the names that settings accept, with their options, and exit",
    )
    text = "describe which clients take part under this trace, write a page with plots to run-dir, and exit"
    parser.add_argument("--show-trace", metavar="SPEC", help=text)
    return parser


def read_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Merge the configuration file and the flags, which override the file; several values are a list.

    Raises
    ------
    ValueError
        The file cannot be read.
    """
    values: dict[str, Any] = read_toml(arguments.config) if arguments.config else {}
    if arguments.show_trace is not None:
        arguments.trace = [arguments.show_trace]
    for field in fields(Settings):
        given = getattr(arguments, field.name)
        if given is not None:
            single = isinstance(given, list) and len(given) == 1 and field.name != "option"
            values[field.name.replace("_", "-")] = given[0] if single else given
    return values


def run_comparison(values: dict[str, Any], arguments: argparse.Namespace, console: Console) -> int:
    """Run all cells of a comparison; return the exit code.

    Raises
    ------
    ValueError
        A setting is unknown or invalid.
    """
    if arguments.show_trace is not None:
        raise ValueError("show-trace: give one value for each setting")
    if arguments.reach is not None and not 0 <= arguments.reach <= 1:
        raise ValueError(f"reach is {arguments.reach}; it must be from 0 to 1")
    of_comparison = cells(values, arguments.config or "command line")
    for cell in of_comparison:
        strategy_options(cell.settings)  # errors in names and options are reported before anything runs
    comparison = compare(of_comparison, console, arguments.reach, arguments.fresh)
    if arguments.json:
        print(json.dumps(comparison.as_json()))
    return comparison.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(listing()))
        return 0
    console = Console(stderr=arguments.json)
    try:
        values = read_values(arguments)
        if is_comparison(values):
            return run_comparison(values, arguments, console)
        if arguments.reach is not None or arguments.fresh:
            raise ValueError("reach and fresh belong to a comparison: give a setting several values")
        settings = Settings.from_mapping(values, arguments.config or "command line")
        if arguments.show_trace is not None:
            report = show_trace(settings, console)
            if arguments.json:
                print(json.dumps(report))
            return 0
        experiment = prepare(settings)
        availability = remember(experiment.trace)
        folder = RunFolder(experiment.settings)
        transport = virtual_transport(experiment, availability)
    except ValueError as error:
        parser.error(" ".join(str(error).split()))
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted before the first round\n")
    summary = drive(experiment, transport, availability, folder, console)
    if arguments.json:
        print(json.dumps(summary))
    return 128 + signal.Signals[summary["signal"]] if summary["interrupted"] else 0


def _metavar(name: str, kind: type) -> str:
    if name in ("strategy", "task", "model", "partition", "sizes", "trace", "lr_schedule", "server_opt"):
        return "SPEC"
    if name in ("arrivals", "departures"):
        return "CLIENT=ROUND,..."
    return {int: "INT", float: "FLOAT"}.get(kind, name.partition("_")[2].upper() or name.upper())


if __name__ == "__main__":
    sys.exit(main())
