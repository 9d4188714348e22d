"""Helpers for the tests of the recorder."""

import subprocess
import sys
import time
from pathlib import Path

from traces.record import Recorder
from traces.recorded.device_log import read_device_log

ROOT = Path(__file__).parents[1]
T0 = 1_700_000_000.0


class Device:
    """The two clocks of a device: the system's, which can be set, and a monotonic one."""

    def __init__(self, shows: float = T0) -> None:
        self.shows, self.up = shows, 12.5

    def recorder(self, path: Path, client: int = 0) -> Recorder:
        return Recorder(path, client, clock=lambda: self.shows, stopwatch=lambda: self.up)

    def wait(self, seconds: float) -> None:
        self.shows += seconds
        self.up += seconds


def sessions(path: Path, num_clients: int = 1) -> list[list[tuple[float, float]]]:
    """Each client's intervals online, in seconds since T0, with adjacent ones joined."""
    log = read_device_log("test", str(path), num_clients)
    found = []
    for low, high in zip(log.first[:-1], log.first[1:], strict=True):
        own: list[tuple[float, float]] = []
        for start, leave in zip(log.start[low:high] - T0, log.leave[low:high] - T0, strict=True):
            if not own or own[-1][1] < start:
                own.append((start, leave))
        found.append(own)
    return found


def run(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "traces.record", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE, **options)


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
