"""Seconds until the command line has something to show: lists, a trace, the first round of a run.

    python benchmarks/startup.py
    python benchmarks/startup.py --against ../older-checkout     # in turns with this one
    python benchmarks/startup.py --commands help list --turns 9

Medians over the turns, the fastest and the slowest in brackets, after one turn that does not count: in it
Python compiles the files. A run counts until its first round is in metrics.jsonl; what comes after it, such
as Ray's end and the report, does not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, machine, machine_line, table, write_json

RUN = ["--model", "logistic", "--num-rounds", "1", "--no-report"]
COMMANDS: dict[str, list[str]] = {
    "help": ["--help"],
    "list": ["--list"],
    "show-trace": ["--show-trace", "phones"],
    "inline": [*RUN, "--engine", "inline"],
    "ray": [*RUN, "--engine", "ray"],
}
POLL = 0.01  # seconds


def seconds_of(name: str, checkout: Path) -> float:
    """Return how long a command takes in a checkout, or a run until its first round has ended.

    Raises
    ------
    RuntimeError
        The command has failed; the message is the last line that it printed.
    """
    with tempfile.TemporaryDirectory(prefix="fedtide-benchmark-") as scratch:
        runs, log = Path(scratch, "runs"), Path(scratch, "log")
        command = [sys.executable, "sim.py", *COMMANDS[name], "--run-dir", str(runs)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        with log.open("wb") as output:
            start = time.perf_counter()
            process = subprocess.Popen(
                command, cwd=checkout, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        first = None
        while process.poll() is None:
            if first is None and _rounds(runs) >= 1:
                first = time.perf_counter() - start
            time.sleep(POLL)
        whole = time.perf_counter() - start
        if process.returncode:
            lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
            raise RuntimeError(f"{name} in {checkout}: {next(filter(None, reversed(lines)), '')}")
    return first or whole


def _rounds(runs: Path) -> int:
    """Return how many rounds are written, without round 0."""
    return max((path.read_bytes().count(b"\n") - 1 for path in runs.glob("*/metrics.jsonl")), default=0)


def spread(seconds: Sequence[float]) -> str:
    """Return the median, and the least and the largest."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commands", nargs="+", choices=[*COMMANDS], default=[*COMMANDS])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args(argv)
    about = machine()
    checkouts = {"this checkout": ROOT}
    if arguments.against:
        checkouts = {str(arguments.against): arguments.against, **checkouts}
    taken: dict[tuple[str, str], list[float]] = {
        (name, which): [] for name in arguments.commands for which in checkouts
    }
    for turn in range(1 + arguments.turns):
        for (name, which), seconds in taken.items():
            last = seconds_of(name, checkouts[which])
            if turn:
                seconds.append(last)
    rows = [[name, *(spread(taken[name, which]) for which in checkouts)] for name in arguments.commands]
    print(table(["seconds", *checkouts], rows))
    print(f"\n{machine_line(about)}")
    results = [{"command": name, "checkout": which, "seconds": taken[name, which]} for name, which in taken]
    write_json(arguments.json, machine=about, results=results)


if __name__ == "__main__":
    main()
