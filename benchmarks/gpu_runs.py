"""Whole runs on a GPU: every method, inline and on Ray, against the same run on the CPU.

    python benchmarks/gpu_runs.py --out runs.jsonl        # three minutes on one GPU; needs Flower
    python benchmarks/gpu_runs.py --device cpu --quick    # the same code without a GPU

Each method runs for three rounds with a small CNN with dropout. The weights differ from the CPU's by the
rounding of single precision, which a ReLU at zero may amplify: what is compared is the distance as a share of
the way that the weights went. Then four Ray actors share the GPU (`--client-gpus 0.25`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

import fedtide
from benchmarks.measure import machine, machine_line
from fedtide.plan import METHODS

MOST = 1e-3  # of the way that the weights went
QUICK = ("fedavg", "mifa", "scaffold", "apfl")
RUN: dict[str, Any] = {
    "task": "digits",
    "model": "cnn3x3:hidden=16,dropout=0.25",
    "partition": "label",
    "trace": "bernoulli:p=0.5",
    "num_clients": 20,
    "num_rounds": 3,
    "local_steps": 5,
    "batch_size": 10,
    "learning_rate": 0.05,
    "evaluate_every": 3,
    "report": "none",
    "progress": False,
}


def weights(folder: str, strategy: str, **settings: Any) -> tuple[NDArray[Any], float]:
    """Run a method; return its final weights, and the seconds that it took."""
    start = time.perf_counter()
    run = fedtide.run(run_dir=folder, strategy=strategy, **RUN | settings)
    return np.concatenate([w.ravel() for w in run.weights]), time.perf_counter() - start


def main() -> None:
    """Run all; exit with 1 if one differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="a few methods")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write each result here, in a line")
    arguments = parser.parse_args()
    gpus = float(arguments.device != "cpu")
    ways = {"inline": {"engine": "inline", "client_gpus": gpus}}
    ways["ray"] = {"engine": "ray", "client_gpus": gpus / 4, "num_workers": 4 if gpus else 2}
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        for way, settings in ways.items():
            for strategy in METHODS if way == "inline" and not arguments.quick else QUICK:
                try:
                    start, _ = weights(folder, strategy, num_rounds=1, engine="inline", client_gpus=0.0)
                    expected, before = weights(folder, strategy, engine="inline", client_gpus=0.0)
                    found, seconds = weights(folder, strategy, **settings)
                    off = float(
                        np.linalg.norm(found - expected) / max(np.linalg.norm(expected - start), 1e-3)
                    )
                    result: dict[str, Any] = {"difference": off, "seconds": seconds, "cpu_seconds": before}
                except (fedtide.SettingsError, fedtide.RunError) as error:
                    result = {"error": str(error)}
                result = {"way": way, "strategy": strategy} | result
                differ += not result.get("difference", MOST) < MOST
                print(json.dumps(result), flush=True)
                if arguments.out:
                    with arguments.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(result) + "\n")
    print(f"{differ} differ by more than {MOST:g}; {machine_line(machine())}")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
