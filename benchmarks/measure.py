"""Shared by the benchmarks: timing and memory of separate processes, tables, a description of the machine.

A benchmark runs each thing that it measures in separate processes. It starts `python -m benchmarks.contender`
with a job, a dictionary passed in the environment; the job names the module of this package whose `run` does
the work and calls `Clock.tick` at the end of each round. All processes that inherit the job belong to it.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOB = "FEDTIDE_BENCHMARK"  # the environment variable with the job
PACKAGES = ("flwr", "ray", "torch", "numpy", "numba", "jax", "pfl", "blazefl", "fedjax", "flgo")
PAUSE = 0.2  # minimum seconds between two measurements of the memory

Job = dict[str, Any]


class Clock:
    """Records when each round of a job ends, and decides when enough rounds have been timed.

    Parameters
    ----------
    job
        Has `clock`, a file; `rounds`, how many rounds to time, or if that is 0 `seconds`, for how long (at
        least two rounds). The first round is not timed.
    """

    def __init__(self, job: Job) -> None:
        self._path = Path(job["clock"])
        self._rounds, self._seconds = int(job["rounds"]), float(job["seconds"])
        self._ticks: list[float] = []

    def tick(self) -> None:
        """Record the end of a round; before the first round, the end of the start-up."""
        self._ticks.append(time.monotonic())
        self._append(repr(self._ticks[-1]))

    @property
    def enough(self) -> bool:
        """Whether enough rounds have been timed."""
        timed = len(self._ticks) - 1
        if self._rounds:
            return timed >= self._rounds
        return timed >= 2 and self._ticks[-1] - self._ticks[0] >= self._seconds

    def note(self, **values: Any) -> None:
        """Report results of the job itself to the benchmark."""
        self._append(json.dumps(values))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@dataclass
class Measured:
    """The measurements of a job.

    Attributes
    ----------
    round_seconds
        Duration of each round except the first.
    start_seconds
        From the start of the process to the end of the first round, minus a median round.
    peak_bytes
        Largest sum over the job's processes of the proportional set size (memory shared by several of them
        counts once); None if the system does not report it.
    notes
        Results that the job reported itself.
    error
        Why the job failed; empty if it did not.
    """

    round_seconds: list[float] = field(default_factory=list)
    start_seconds: float | None = None
    peak_bytes: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def seconds(self) -> float | None:
        """Median duration of a round."""
        return statistics.median(self.round_seconds) if self.round_seconds else None

    def as_json(self) -> dict[str, Any]:
        """Return the values for a JSON file."""
        return {
            "seconds_per_round": self.seconds,
            "rounds": len(self.round_seconds),
            "start_seconds": self.start_seconds,
            "peak_bytes": self.peak_bytes,
            **self.notes,
            **({"error": self.error} if self.error else {}),
        }


def measure(job: Job, timeout: float = 1800.0) -> Measured:
    """Run a job in separate processes and monitor them; all of them have ended when this returns."""
    with tempfile.TemporaryDirectory(prefix="fedtide-benchmark-") as scratch:
        clock, log = Path(scratch, "clock"), Path(scratch, "log")
        clock.touch()
        job = {"rounds": 0, "seconds": 0.0, **job, "clock": str(clock), "scratch": scratch}
        mark = uuid.uuid4().hex
        environment = {
            **os.environ,
            JOB: json.dumps({**job, "mark": mark}),
            "FLWR_HOME": scratch,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # for all contenders, as fedtide sets it for its own workers
        }
        command = [sys.executable, "-m", "benchmarks.contender"]
        signal.signal(signal.SIGTERM, _exit)  # so that the job's processes end with this one
        measured, start = Measured(), time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                while process.poll() is None:
                    before = time.monotonic()
                    if before - start > timeout:
                        measured.error = f"stopped after {timeout:.0f} s"
                        break
                    measured.peak_bytes = _larger(measured.peak_bytes, memory_of(_marked(mark)))
                    # Measuring costs time: at most a fiftieth of a core.
                    time.sleep(max(PAUSE, 50 * (time.monotonic() - before)))
            finally:
                _end(mark, process)
        if process.returncode and not measured.error:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            measured.error = lines[-1][:300] if lines else f"exit code {process.returncode}"
        _read(clock, start, measured)
        return measured


def _read(clock: Path, start: float, measured: Measured) -> None:
    ticks = []
    for line in clock.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            measured.notes |= json.loads(line)
        else:
            ticks.append(float(line))
    measured.round_seconds = [after - before for before, after in pairwise(ticks)]
    if measured.seconds is not None:
        measured.start_seconds = ticks[0] - start - measured.seconds
    elif not measured.notes and not measured.error:
        measured.error = "no round was timed"


def _marked(mark: str) -> Iterator[int]:
    """Yield the processes that inherited a job."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in entry.read_bytes():
                yield int(entry.parent.name)
        except OSError:  # it has ended, or belongs to another user
            continue


def memory_of(processes: Iterable[int]) -> int | None:
    """Return the sum of the proportional set sizes in bytes; None if the system does not report them."""
    total = None
    for pid in processes:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        total = (total or 0) + 1024 * kilobytes
    return total


def network_bytes() -> int | None:
    """Return how much this machine has sent to itself by network; None if the system does not report it."""
    about = Path("/proc/net/dev")
    lines = about.read_text(encoding="ascii").splitlines() if about.exists() else []
    return next(
        (int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), None
    )


def _larger(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return max(known, default=None)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _end(mark: str, process: subprocess.Popen[bytes]) -> None:
    """End the remaining processes of a job: by SIGTERM, then by SIGKILL."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        left = list(_marked(mark))
        for pid in left:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while left and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.05)
            left = list(_marked(mark))
    if process.poll() is None:
        process.kill()
    process.wait()


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(shown, line)) + " |" for line in lines)


def shown(value: Any) -> str:
    """Format a number with three significant digits; a dash for an unknown value."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def mebibytes(size: int | None) -> int | None:
    """Convert bytes to MiB."""
    return None if size is None else round(size / 2**20)


def machine() -> dict[str, Any]:
    """Describe the machine and the versions that the results hold for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
    }


def machine_line(about: dict[str, Any]) -> str:
    """Return the description by `machine` as a sentence."""
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['system']}; Python {about['python']}, {versions}; "
        f"load average {about['load_before']} before the start."
    )


def write_json(path: Path | None, **content: Any) -> None:
    """Write the results to a file, if one is given."""
    if path is not None:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
