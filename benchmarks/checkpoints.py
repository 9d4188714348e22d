"""What a checkpoint costs: its seconds, the bytes that it writes, and its share of a run's time.

    python benchmarks/checkpoints.py --data-dir data      # MNIST, N = 1,000, K = 100; a quarter of an hour

Each checkpoint writes the weights, and of the vectors by client those that have changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import machine, machine_line, table, write_json
from benchmarks.workloads import ensure_mnist
from fedtide.config import Settings
from fedtide.engine.checkpoints.store import FILE, CheckpointStore
from fedtide.engine.run import simulate
from fedtide.plan import Plan

SETTINGS = Settings(
    task="mnist",
    num_clients=1000,
    clients_per_round=100,
    trace="bernoulli:p=0.9",
    engine="inline",
    client_gpus=0.0,
    evaluate_every=20,
    learning_rate=0.05,
)
CASES = {  # about 100,000 and 1,000,000 weights
    "mimic, M = 100,000": replace(SETTINGS, strategy="mimic", model="mlp:hidden=126"),
    "fedlaavg, M = 1,000,000": replace(SETTINGS, strategy="fedlaavg", model="mlp:hidden=1258"),
}


def time_checkpoints(settings: Settings) -> dict[str, Any]:
    """Run an experiment; return what its checkpoints took."""
    seconds: list[float] = []
    size = 0
    save = CheckpointStore.save

    def timed(folder: CheckpointStore, *state: Any) -> None:
        start = time.perf_counter()
        save(folder, *state)
        seconds.append(time.perf_counter() - start)
        nonlocal size
        size = (folder.folder / FILE).stat().st_size

    CheckpointStore.save = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            start = time.perf_counter()
            simulate(Plan.of(settings), Path(scratch) / "run")
            whole = time.perf_counter() - start
    finally:
        CheckpointStore.save = save  # type: ignore[method-assign]
    return {"run_seconds": whole, "checkpoint_seconds": seconds, "bytes": size}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data-dir", default="data", help="where MNIST lies, or is downloaded to")
    parser.add_argument("--num-rounds", type=int, default=60)
    parser.add_argument("--num-clients", type=int, default=1000)
    parser.add_argument("--checkpoint-every", type=int, default=0, help="rounds; 0: by time, as by default")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args(argv)
    about, rows, results = machine(), [], []
    scratch = tempfile.TemporaryDirectory()
    data_dir, note = ensure_mnist(arguments.data_dir, scratch.name)
    for name, settings in CASES.items():
        settings = replace(
            settings,
            data_dir=data_dir,
            num_rounds=arguments.num_rounds,
            num_clients=arguments.num_clients,
            clients_per_round=min(100, arguments.num_clients),
            checkpoint_every=arguments.checkpoint_every,
        )
        taken = time_checkpoints(settings)
        seconds, size = taken["checkpoint_seconds"] or [0.0], taken["bytes"]  # a short run affords none
        rows.append(
            [
                name,
                taken["run_seconds"],
                len(taken["checkpoint_seconds"]),
                median(seconds),
                max(seconds),
                size / 1e6,
                f"{sum(seconds) / taken['run_seconds']:.1%}",
            ]
        )
        results.append({"case": name, **taken})
    heads = ["", "run, s", "checkpoints", "median, s", "longest, s", "file, MB", "share"]
    print(f"{machine_line(about)} {note}\n")
    print(table(heads, rows))
    write_json(arguments.json, machine=about, results=results)
    scratch.cleanup()


if __name__ == "__main__":
    main()
