"""Runs that are killed: each in a process of its own, forked from one that has imported everything."""

import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import sim
from fedtide.config import Settings
from fedtide.engine.checkpoints.store import FILE
from fedtide.engine.run import simulate
from fedtide.plan import Plan

TESTS = Path(__file__).parent


def train(settings: Settings, path: Path) -> None:
    """Run an experiment, or resume it."""
    simulate(Plan.of(settings), None if settings.resume else path)


def command(arguments: Sequence[str]) -> None:
    """Run the command line, silently."""
    with redirect_stdout(StringIO()):
        sim.main(arguments)


def start(target: Callable[..., None], *arguments: Any) -> Any:
    """Start `train` or `command` in a process of its own."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def kill_when(process: Any, condition: Callable[[], bool]) -> bool:
    """Kill a run as soon as a condition holds; return whether it was still running."""
    while process.is_alive():
        if condition():
            process.kill()
            break
        time.sleep(0.001)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return bool(process.exitcode)


def records(run: Path) -> int:
    """How many records a run has written."""
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def writes_checkpoint(run: Path) -> bool:
    """Whether a transaction is open: SQLite's journal exists from its first write to its commit."""
    return (run / "checkpoint" / f"{FILE}-journal").exists()


def saved_rounds(run: Path) -> list[int]:
    """The rounds of a run's checkpoints, in ascending order."""
    with suppress(sqlite3.OperationalError), closing(_opened(run)) as db:
        query = "SELECT DISTINCT key FROM vectors WHERE name = 'state' ORDER BY key"
        return [number for (number,) in db.execute(query)]
    return []


def _opened(run: Path) -> sqlite3.Connection:
    return sqlite3.connect((run / "checkpoint" / FILE).resolve().as_uri() + "?mode=rw", uri=True)
