"""The flags of the command line, one for each setting.

Nothing here imports PyTorch, so that `--help` and mistakes are reported at once.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from fedtide.base.allowed import options_of
from fedtide.config import Settings
from fedtide.config.grid import TUNE_TRIALS, at_scale, overridden
from fedtide.config.settings import read_toml
from fedtide.loggers.registry import LOGGERS

METAVARS = {
    **dict.fromkeys(("strategy", "task", "model", "partition", "sizes", "trace", "select"), "SPEC"),
    **dict.fromkeys(("lr_schedule", "server_opt", "initial_model"), "SPEC"),
    **{"arrivals": "CLIENT=WHEN,...", "departures": "CLIENT=WHEN,..."},
    **{"amplify": "PERIOD,FACTOR", "stop_at": "NAME=VALUE"},
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    @property
    def flags(self) -> list[str]:
        """All flags."""
        return [flag for action in self._actions for flag in action.option_strings]

    @property
    def command(self) -> str:
        """How the program was called."""
        return "python sim.py" if self.prog == "sim.py" else self.prog

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


class NamesWhole(argparse.HelpFormatter):
    """Wraps help without breaking names at their hyphens."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def make_parser() -> Parser:
    """Make the parser, with a flag for each setting."""
    parser = Parser(
        prog="sim.py" if Path(sys.argv[0]).name == "sim.py" else "fedtide",  # as it was called
        usage="%(prog)s [-h] [--list] [--show-trace SPEC] [--rehearse LOG] [--config FILE.toml] "
        "[--SETTING VALUE ...] ...",
        description="Federated learning where clients come and go.",
        epilog="SPEC is NAME:KEY=VALUE,KEY=VALUE; --list shows all names with their options. A NAME with a "
        "dot is imported: my_methods.Momentum, or flwr.server.strategy.FedAdam. A setting with several "
        "values makes a comparison.",
        allow_abbrev=False,
        formatter_class=NamesWhole,
    )
    groups: dict[str, Any] = {}
    for field in fields(Settings):
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        flag, kind = "--" + field.name.replace("_", "-"), type(field.default)
        default = f"default: {field.default}" if field.default not in ("", ()) and kind is not bool else ""
        note = "; ".join(filter(None, (_allowed(field), default)))
        text = (field.metadata["help"] + (f" ({note})" if note else "")).replace("%", "%%")
        add = groups[title].add_argument
        if field.name == "option":
            add(flag, action="append", metavar="KEY=VALUE", help=text)
        elif kind is tuple:
            add(flag, action="extend", nargs="+", metavar="SPEC", help=text)
        elif field.name == "log":
            add(flag, metavar="NAME,...", help=text)
        elif kind is bool:
            add(flag, action=argparse.BooleanOptionalAction, help=text, default=None)
        else:
            word = field.name.partition("_")[2] or field.name
            name = {int: "INT", float: "FLOAT"}.get(kind, word.upper())
            add(flag, type=kind, nargs="+", metavar=METAVARS.get(field.name, name), help=text)
        if field.name == "report":
            add("--no-report", dest="report", action="store_const", const="none", help="--report none")
    _add_commands(parser)
    return parser


def _add_commands(parser: Parser) -> None:
    """Add the flags that are not settings of a run."""
    text = "settings from a file; flags override them, and select among its cells"
    parser.add_argument("--config", metavar="FILE.toml", help=text)
    text = "small: the settings of the config file's [small] table, which take minutes (default: full)"
    parser.add_argument("--scale", choices=("full", "small"), default="full", help=text)
    text = "in a comparison: also report the cost of reaching these values of the metric, such as 0.8, or "
    text += "targets as of --stop-at, such as loss=0.5 (default: that of --stop-at)"
    parser.add_argument("--reach", nargs="+", metavar="TARGET", help=text)
    text = "compare each method at its best values, which are searched first: learning-rate=0.01..1 (on a "
    text += 'logarithmic scale), "option.mu=0.001|0.01"'
    parser.add_argument("--tune", nargs="+", metavar="KEY=RANGE", help=text)
    text = f"trials of each search (default: {TUNE_TRIALS})"
    parser.add_argument("--tune-trials", type=int, default=TUNE_TRIALS, metavar="INT", help=text)
    text = "seeds over which the score of a trial is the mean (default: 1)"
    parser.add_argument("--tune-seeds", type=int, default=1, metavar="INT", help=text)
    text = "in a comparison: what the others are compared to, such as strategy=fedavg,round-ends=0; what it "
    text += "leaves out is as in each of them (default: the first method)"
    parser.add_argument("--baseline", default="", metavar="KEY=VALUE,...", help=text)
    text = "which of --metrics the search is for, such as f1_score_macro (default: the task's own)"
    parser.add_argument("--tune-for", default="", metavar="NAME", help=text)
    text = "in a comparison: train finished cells again"
    parser.add_argument("--fresh", action="store_true", help=text)
    text = "import the parts outside of fedtide that the folder to --resume names"
    parser.add_argument("--trust", action="store_true", help=text)
    text = "print the summary as one line of JSON, and everything else to standard error"
    parser.add_argument("--json", action="store_true", help=text)
    text = "list the names that settings accept, with their options, or those given alone, and exit"
    parser.add_argument("--list", action="store_true", help=text)
    text = "describe which clients take part under this trace, write a page with plots to run-dir, and exit"
    parser.add_argument("--show-trace", metavar="SPEC", help=text)
    text = (
        "compare methods on a log of devices (the trace recorded:file=LOG) and print how to deploy the best"
    )
    parser.add_argument("--rehearse", metavar="LOG", help=text)


def read_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Merge the configuration file and the flags, which override it; several values are a list."""
    values = read_toml(arguments.config) if arguments.config else {}
    values = at_scale(values, arguments.scale, f"config {arguments.config}" if arguments.config else "scale")
    if arguments.show_trace is not None:
        arguments.trace = [arguments.show_trace]
    flags: dict[str, Any] = {}
    for field in fields(Settings):
        given = getattr(arguments, field.name)
        if given is not None:
            single = isinstance(given, list) and len(given) == 1 and not isinstance(field.default, tuple)
            flags[field.name.replace("_", "-")] = given[0] if single else given
    return overridden(values, flags, f"config {arguments.config}")


def _allowed(setting: Field[Any]) -> str:
    """Describe the values that a setting allows, unless it is a spec or allows any."""
    key = setting.name.replace("_", "-")
    if key == "log":
        return " | ".join(LOGGERS)
    option = options_of(Settings).get(key)
    return option.allowed if option and option.kind is not bool else ""
