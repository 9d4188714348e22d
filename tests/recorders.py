"""Helpers for the tests of the recorder."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import wait_until

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

    def online(self, path: Path, *waits: float, client: int = 0) -> Recorder:
        """Return a recorder that has logged time online after each of some waits."""
        recorder = self.recorder(path, client)
        recorder.online()
        for seconds in waits:
            self.wait(seconds)
            recorder.online()
        return recorder


def sessions(path: Path, num_clients: int = 1) -> list[list[tuple[float, float]]]:
    """Each client's intervals online, in seconds since T0, with adjacent ones joined."""
    log = read_device_log("test", str(path), num_clients)
    found = []
    for low, high in zip(log.first[:-1], log.first[1:], strict=True):
        own: list[tuple[float, float]] = []
        for start, leave in zip(log.start[low:high] / 1e6 - T0, log.leave[low:high] / 1e6 - T0, strict=True):
            if not own or own[-1][1] < start:
                own.append((start, leave))
        found.append(own)
    return found


def run(*arguments: Any, module: tuple[Any, ...] = ("-m", "traces.record")) -> subprocess.Popen:
    command = [sys.executable, *module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen) -> None:
    wait_until(lambda: path.is_file() and path.read_bytes().count(b"\n") >= count, process)
