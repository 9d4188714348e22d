"""How the engine words and prints what users read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


UNWRAPPED = 10_000  # columns of a file or a pipe
NOTEBOOK = 110  # characters of a line
COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # what terminals take for a colour


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 client, 2 clients."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def plain(text: object, most: int = 200) -> str:
    """Return a text that somebody else wrote so that it is safe to print: in one short line."""
    line = "".join(c if c.isprintable() else " " for c in COLOUR.sub("", str(text)[: 2 * most])[: most + 1])
    return line if len(line) <= most else f"{line[: most - 1]}…"


def ends(error: BaseException) -> str:
    """Return an error as one line: if it is long, with a traceback perhaps, its first and its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    whole = " ".join(lines)
    return plain(whole if len(whole) <= 400 else f"{lines[0]} {lines[-1]}", 400)


def client_name(client: int, names: Sequence[str]) -> str:
    """Return a client's number, with its name if it has one."""
    name = names[client] if names and client < len(names) else ""
    return f'{client} "{plain(name, 24)}"' if name else str(client)


def new_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Make what a program prints with: as wide as its terminal or as COLUMNS says, and else without limit."""
    from rich.console import Console

    console = Console(stderr=stderr, quiet=quiet)
    if console.is_jupyter:  # where each line would be an output of its own
        return Console(stderr=stderr, quiet=quiet, force_jupyter=False, force_terminal=False, width=NOTEBOOK)
    if not (console.is_terminal or "COLUMNS" in os.environ):
        console.width = UNWRAPPED
    return console


def say(console: Console, line: str) -> None:
    """Print a line as it is, whatever is in it and however wide the terminal."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as 2 h 13 min; a short one in seconds alone."""
    if seconds < 59.5:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    scale = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
    name, size, part, of = next(units for units in scale if whole >= units[1])
    rest = whole % size // of
    return f"{whole // size} {name}" + (f" {rest} {part}" if rest else "")
