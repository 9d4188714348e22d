"""What the benchmarks share: processes that are timed from outside, their memory, tables, the machine.

A benchmark gives each thing that it measures processes of its own. It starts `python -m benchmarks.contender`
with a job, a dictionary in the environment; the job names the module of this package whose `run` does the
work and calls `Clock.tick` at the end of each round. All processes that inherit the job count as its own.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOB = "FLEXFL_BENCHMARK"  # the environment variable with the job
PACKAGES = ("flwr", "ray", "torch", "numpy", "pfl")
PAUSE = 0.2  # seconds between two looks at the memory, at least

Job = dict[str, Any]


class Clock:
    """Notes when each round of a job ended, and says when it has been enough.

    Parameters
    ----------
    job
        Has `clock`, a file; `rounds`, how many to time, or with 0 `seconds`, for how long (two rounds at
        least). The first round is not timed.
    """

    def __init__(self, job: Job) -> None:
        self._path = Path(job["clock"])
        self._rounds, self._seconds = int(job["rounds"]), float(job["seconds"])
        self._ticks: list[float] = []

    def tick(self) -> None:
        """Note the end of a round; before the first one, that of the start-up."""
        self._ticks.append(time.monotonic())
        self._append(repr(self._ticks[-1]))

    @property
    def enough(self) -> bool:
        """Whether no further round is needed."""
        timed = len(self._ticks) - 1
        if self._rounds:
            return timed >= self._rounds
        return timed >= 2 and self._ticks[-1] - self._ticks[0] >= self._seconds

    def note(self, **values: Any) -> None:
        """Hand a result of the job's own to the benchmark."""
        self._append(json.dumps(values))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@dataclass
class Measured:
    """What came of a job.

    Attributes
    ----------
    round_seconds
        Duration of each round but the first.
    start_seconds
        From the start of the process to the end of the first round, less a median round.
    peak_bytes
        Largest sum over the job's processes of the proportional set size (memory that several of them share
        counts once); None where the system does not tell.
    notes
        What the job noted itself.
    error
        Why there is nothing to report; empty if there is.
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
        """Numbers for a JSON file."""
        return {
            "seconds_per_round": self.seconds,
            "rounds": len(self.round_seconds),
            "start_seconds": self.start_seconds,
            "peak_bytes": self.peak_bytes,
            **self.notes,
            **({"error": self.error} if self.error else {}),
        }


def measure(job: Job, timeout: float = 1800.0) -> Measured:
    """Do a job in processes of its own and watch them; none of them is left when this returns."""
    with tempfile.TemporaryDirectory(prefix="flexfl-benchmark-") as scratch:
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
        }
        command = [sys.executable, "-m", "benchmarks.contender"]
        signal.signal(signal.SIGTERM, _exit)  # the job's processes are to end with this one
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
                    measured.peak_bytes = _larger(measured.peak_bytes, _memory(mark))
                    # Looking costs time; at most a fiftieth of a core.
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
    """Processes that inherited a job."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in entry.read_bytes():
                yield int(entry.parent.name)
        except OSError:  # it ended, or is not ours
            continue


def _memory(mark: str) -> int | None:
    """Sum of the proportional set sizes in bytes."""
    total = None
    for pid in _marked(mark):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        total = (total or 0) + 1024 * kilobytes
    return total


def _larger(a: int | None, b: int | None) -> int | None:
    known = [value for value in (a, b) if value is not None]
    return max(known, default=None)


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _end(mark: str, process: subprocess.Popen[bytes]) -> None:
    """End what is left of a job: politely, then not."""
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
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(shown, line)) + " |" for line in lines)


def shown(value: Any) -> str:
    """A number with three digits that mean something; a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def mebibytes(size: int | None) -> int | None:
    """Bytes in MiB."""
    return None if size is None else round(size / 2**20)


def machine() -> dict[str, Any]:
    """The machine and the versions that numbers hold for."""
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
    """`machine` in a sentence."""
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['system']}; Python {about['python']}, {versions}; "
        f"load average {about['load_before']} before the start."
    )


def write_json(path: Path | None, **content: Any) -> None:
    """Keep results in a file, if one was asked for."""
    if path is not None:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
