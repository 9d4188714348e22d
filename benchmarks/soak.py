"""Whether anything grows in a long run in which clients come and go and workers are killed.

    python benchmarks/soak.py                         # 20,000 rounds on Ray; about ten minutes
    python benchmarks/soak.py --strategy fedbuff --kill-every 500

Memory (of all processes, what they share counted once), open files of the run's own process, temporary files,
and what lies in the run folder besides the records are looked at once a second.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import ROOT, machine, machine_line, memory_of, table, write_json

TRACE = "bernoulli:p=0.7+pools:first=8+lost:p=0.05+late:p=0.1,rounds=3"
WORKER = b"ray::RayClients"
COLUMNS = ("round", "memory_mib", "open_files", "temporary_files", "folder_mib")


def command(arguments: argparse.Namespace, run_dir: Path) -> list[str]:
    """Return the command line of the run: half of the clients arrive during it, the other half depart."""
    clients, rounds = arguments.num_clients, arguments.num_rounds
    half = clients // 2
    times = [max(2, (k + 1) * rounds // (half + 1)) for k in range(half)]
    arrivals = ",".join(f"{half + k}={t}" for k, t in enumerate(times))
    departures = ",".join(f"{k}={t}" for k, t in enumerate(times))
    flags = {
        "strategy": arguments.strategy,
        "model": "logistic",
        "num-clients": clients,
        "clients-per-round": 20,
        "num-rounds": rounds,
        "trace": TRACE,
        "arrivals": arrivals,
        "departures": departures,
        "evaluate-every": 100,
        "num-workers": 2,
        "client-gpus": 0,
        "checkpoint-every": 50,
        "run-dir": run_dir,
    }
    return [sys.executable, "sim.py", "--no-report", *(f"--{key}={value}" for key, value in flags.items())]


class Watched:
    """A running process with all that it has started.

    Parameters
    ----------
    process
        It leads a session of its own.
    run_dir
        Where its run folder is.
    """

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path) -> None:
        self.process, self.run_dir = process, run_dir
        self._read, self._lines = 0, 0

    def pids(self) -> Iterator[int]:
        """Yield the processes of the session."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                _, _, rest = (entry / "stat").read_text().rpartition(")")
                if int(rest.split()[3]) == self.process.pid:
                    yield int(entry.name)

    def rounds(self) -> int:
        """Return how many rounds are recorded."""
        for path in self.run_dir.glob("*/metrics.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self._lines += new.count(b"\n")
        return max(0, self._lines - 1)

    def kill_a_worker(self) -> bool:
        """Kill a worker of the simulation; return whether there was one."""
        found = []
        for pid in self.pids():
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(WORKER):
                    found.append(pid)
        if found:
            os.kill(random.choice(found), signal.SIGKILL)
        return bool(found)

    def sample(self) -> dict[str, float]:
        """Return what the run uses now, by the names of COLUMNS."""
        files = [path for path in self.run_dir.rglob("*") if path.name != "metrics.jsonl"]
        return {
            "round": self.rounds(),
            "memory_mib": (memory_of(self.pids()) or 0) / 2**20,
            "open_files": len(os.listdir(f"/proc/{self.process.pid}/fd")),
            "temporary_files": len([*Path(tempfile.gettempdir()).glob("fedtide-*")]),
            "folder_mib": _size(files) / 2**20,
        }


def _size(paths: Any) -> int:
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size
    return total


def watch(watched: Watched, kill_every: int) -> tuple[list[dict[str, float]], int]:
    """Take samples until the run has ended, killing workers; return the samples, and how many were killed."""
    samples: list[dict[str, float]] = []
    kills, last = 0, 0.0
    while watched.process.poll() is None:
        time.sleep(0.1)
        rounds = watched.rounds()
        kill = kill_every and rounds > kills * kill_every
        if kill:  # at first: on a busy machine many rounds pass while a sample is taken
            kills += watched.kill_a_worker()
        if rounds and (kill or time.monotonic() >= last + 1):  # after its start
            last = time.monotonic()
            with suppress(OSError):
                samples.append(watched.sample())
    return samples, kills


def growth(samples: Sequence[dict[str, float]], column: str) -> float:
    """Return by which part the median of the last quarter is above that of the second one."""
    values = np.array([sample[column] for sample in samples])
    quarter = len(values) // 4
    before, after = np.median(values[quarter : 2 * quarter]), np.median(values[-quarter:])
    return float(after / before - 1) if before else float(after > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and print what was used in ten parts of the run; return the run's exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategy", default="mifa")
    parser.add_argument("--num-rounds", type=int, default=20_000)
    parser.add_argument("--num-clients", type=int, default=200)
    parser.add_argument("--kill-every", type=int, default=1000, help="rounds; 0: no worker is killed")
    parser.add_argument("--json", type=Path, help="file for the samples")
    arguments = parser.parse_args(argv)
    about = machine()
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(scratch)
        process = subprocess.Popen(
            command(arguments, run_dir), cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            watched = Watched(process, run_dir)
            samples, kills = watch(watched, arguments.kill_every)
            rounds = watched.rounds()
        finally:
            process.kill()
    parts = np.array_split(np.arange(len(samples)), min(10, len(samples)))
    rows = [[f"{np.median([samples[i][c] for i in part]):,.1f}" for c in COLUMNS] for part in parts]
    rows.append(["growth", *(f"{growth(samples, column):+.1%}" for column in COLUMNS[1:])])
    print(
        f"{machine_line(about)}\n\n{rounds} rounds, {kills} workers killed, exit code {process.returncode}\n"
    )
    print(table([column.replace("_", " ") for column in COLUMNS], rows))
    write_json(arguments.json, machine=about, results=samples, kills=kills, exit_code=process.returncode)
    return int(process.returncode)


if __name__ == "__main__":
    sys.exit(main())
