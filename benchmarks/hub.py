"""How long `--task hf` takes to load, and how much memory: a table in docs/tasks.md.

    python benchmarks/hub.py --rows 1000000

Makes a table, texts and images of so many rows in a temporary folder, and loads each in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SPECS = {
    "table": "label=label,client=client",
    "text": "text=text,label=label,client=client",
    "image": "image=image,label=label,client=client",
}
CLIENTS = 100
LOAD = """
import resource, sys, time
from fedtide.federation import Federation
from fedtide.config import Settings
import datasets, torch

before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
data = Federation.of(Settings(task=sys.argv[1], num_clients=int(sys.argv[2]))).data
seconds, after = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = sum(a.nbytes for a in (*data.train, *data.test))
print(f"| {seconds:.1f} | {held / 1e6:,.0f} | {(after - before) / 1e3:,.0f} |")
"""


def make(kind: str, rows: int, folder: Path) -> None:
    """Save a data set: 20 numbers, 20 words, or 28x28 grey images; 10 classes, 100 clients."""
    import datasets
    from PIL import Image

    rng = np.random.default_rng(0)
    words = np.array([f"word{k}" for k in range(20_000)])

    def examples(first: int, count: int) -> dict[str, object]:
        own = {"label": rng.integers(10, size=count), "client": [f"c{k % CLIENTS}" for k in range(count)]}
        if kind == "table":
            return own | {f"x{k}": rng.normal(size=count) for k in range(20)}
        if kind == "text":
            return own | {"text": [" ".join(line) for line in words[rng.zipf(1.3, (count, 20)) % len(words)]]}
        return own | {
            "image": [Image.fromarray(x) for x in rng.integers(256, size=(count, 28, 28), dtype=np.uint8)]
        }

    parts = [
        datasets.Dataset.from_dict(examples(at, min(20_000, rows - at))) for at in range(0, rows, 20_000)
    ]
    datasets.concatenate_datasets(parts).save_to_disk(folder)


def main() -> None:
    """Print a row for each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    print(f"| {rows:,} rows | seconds of CPU | MB of the data | MB more at the peak |\n|---|---|---|---|")
    root = str(Path(__file__).parents[1])
    for kind, columns in SPECS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(kind, rows, Path(folder))
            command = [sys.executable, "-c", LOAD, f"hf:{folder},{columns}", str(CLIENTS)]
            done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
            print(f"| {kind} {done.stdout.strip()}", flush=True)


if __name__ == "__main__":
    main()
