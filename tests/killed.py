"""Runs that are killed: each in a process of its own, forked from one that has imported everything."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

from flexfl.config import Settings
from flexfl.engine.run import simulate

TESTS = Path(__file__).parent


def train(settings: Settings, path: Path, fatal_sync: int) -> None:
    """Run an experiment, or go on with it; the process kills itself when it has written so many times."""
    count, sync = 0, os.fsync

    def counted(fd: int) -> None:
        nonlocal count
        count += 1
        if count == fatal_sync:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(fd)

    os.fsync = counted
    simulate(settings, None if settings.resume else path)


def start(settings: Settings, path: Path, fatal_sync: int = 0) -> Any:
    """Start `train` in a process of its own."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed"])
    process = context.Process(target=train, args=(settings, path, fatal_sync))
    process.start()
    return process


def kill_after(process: Any, metrics: Path, lines: int) -> bool:
    """Kill a run when it has written so many records; return whether it was still running."""
    while process.is_alive():
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
            process.kill()
            break
        time.sleep(0.001)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return bool(process.exitcode)
