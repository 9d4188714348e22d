"""Let a device leave the federation for good: `fedtide-leave STATE_DIR`.

The command writes a file, `leave`, into the folder that `state-dir` of the device's node config names. The
device's next reply then says that it departs. The file stays, as that reply may be lost, and in later runs
the device tells the server that it has left. `--undo` removes it: the device is back when it next connects.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedtide.base.errors import why

NAME = "leave"


def is_leaving(folder: Path, run: str) -> bool:
    """Whether a device is to leave; the first run that asks is noted as the one that it has left.

    `folder` is its `state-dir`, `run` Flower's number of the run.
    """
    noted = _noted(folder)
    if noted == "":
        with suppress(OSError):  # who has made the file may be somebody else: it counts all the same
            (folder / NAME).write_text(f"{run}\n", encoding="utf-8")
    return noted is not None


def has_left(folder: Path, run: str) -> bool:
    """Whether a device has left before this run."""
    return _noted(folder) not in (None, "", run)


def _noted(folder: Path) -> str | None:
    """Return the run that a device has left, empty if it is still to leave one; None: it stays."""
    try:
        return (folder / NAME).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or remove it; return the exit code."""
    text = "Let a device leave the federation for good: its next reply says so."
    prog = "python -m clients.device.leave" if __name__ == "__main__" else "fedtide-leave"
    parser = argparse.ArgumentParser(prog=prog, description=text)
    parser.add_argument("state_dir", metavar="STATE_DIR", help="state-dir of the device's node config")
    parser.add_argument(
        "--undo", action="store_true", help="let it stay, or come back when it connects again"
    )
    arguments = parser.parse_args(argv)
    folder = Path(arguments.state_dir)
    if not folder.is_dir():
        parser.exit(2, f"{parser.prog}: error: {folder} is not a folder; state-dir of the node config is\n")
    try:
        if arguments.undo:
            (folder / NAME).unlink(missing_ok=True)
        else:
            (folder / NAME).write_text("", encoding="utf-8")
    except OSError as error:
        parser.exit(2, f"{parser.prog}: error: {folder / NAME}: {why(error)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
