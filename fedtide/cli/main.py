"""The command `fedtide`, which `python sim.py` is as well.

fedtide                                  # handwritten digits; clients come and go
fedtide --strategy fedavg --num-rounds 20
fedtide --strategy fedavg mifa --seed 0 1 2   # several values: a comparison
fedtide --list
fedtide --show-trace phones --num-clients 100 --num-rounds 300
fedtide --rehearse examples/fleet.csv         # which method for the devices of this log?
fedtide export runs/FOLDER --to onnx          # the model of a run, for other programs
fedtide report runs/FOLDER                    # its page of plots again
fedtide without runs/FOLDER --clients 3,7     # the same run, had these clients never come
fedtide runs                                  # what there is in runs/; --prune deletes old runs
fedtide fleet                                 # how are the boards of the federation?
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedtide.cli.flags import Parser


COMMANDS = {
    **{"export": "fedtide.api.export", "fleet": "fedtide.fleet.command"},
    **{"report": "fedtide.report.__main__", "runs": "fedtide.runs", "without": "fedtide.api.without"},
}
"""Modules of the commands that are more than settings of a run, by their first word."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, that of the program unless another is given; return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        warnings.formatwarning = _in_one_line
    if words and words[0] in COMMANDS:
        code: int = import_module(COMMANDS[words[0]]).main(words[1:])
        return code
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the imports take seconds: Ctrl-C ends them silently
    from fedtide.base.display import exit_code
    from fedtide.cli.flags import make_parser

    parser = make_parser()

    code = exit_code(parser.prog, lambda: _run(parser, argv))
    ray = sys.modules.get("fedtide.engine.transports.ray.liveness")
    if argv is None and ray and ray.Liveness.lost:
        atexit.register(_end_without_ray, code)
    return code


def _end_without_ray(code: int) -> None:
    """End this process before Ray's own shutdown, which waits for the dead, or crashes (Ray 2.55)."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    os._exit(code)


def _run(parser: Parser, argv: Sequence[str] | None) -> int:
    """Read the command line and do what it says."""
    from fedtide.base.allowed import did_you_mean
    from fedtide.engine.interrupts import raising_stopped

    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        hint = did_you_mean(flag, parser.flags) if flag else "; settings are written --NAME VALUE"
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    from fedtide.cli.command import execute  # which --help does not need

    try:
        with ExitStack() as heeded:
            return execute(parser, arguments, lambda: heeded.enter_context(raising_stopped()))
    except Exception as error:  # a defect, ours or in a part of the user's own: exit code 1, as Python's
        from fedtide.base.errors import told

        traceback.print_exception(error)
        parser.exit(1, f"{parser.prog}: error: {told(error)}\n")


_SHOWN: set[str] = set()


def _in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Show a warning once, without the place in the code, which says nothing to a user."""
    line = f"warning: {message}\n"
    again = line in _SHOWN
    _SHOWN.add(line)
    return "" if again else line
