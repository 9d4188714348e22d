"""Memory of a round: driver, workers and shared memory, by clients K and weights M, inline and on Ray.

    python benchmarks/memory.py --data-dir data
    python benchmarks/memory.py --models resnet18 --clients 1000 --engines inline --strategies scheme-c

All clients of a federation of K do one step of batch 1, in three rounds, of which the first is not timed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import machine, machine_line, measure, mebibytes, table, write_json
from benchmarks.workloads import CIFAR, ensure_mnist, named_workloads

MODELS = {  # task and model; weights
    "logistic": ("mnist", "logistic", 7_850),
    "mlp": ("mnist", "mlp:hidden=769", 1_203_495),
    "resnet18": (CIFAR, "resnet18", 11_173_962),
}


PEAK = (
    "Peak: the proportional set sizes of all processes, summed about once a second, or the driver's own peak."
)


def settings_of(model: str, clients: int, engine: str, strategy: str, data_dir: str) -> dict[str, Any]:
    """Return the settings of a run; the strategy may have a server optimiser, after a plus sign."""
    task, built, _ = MODELS[model]
    method, _, server_opt = strategy.partition("+")
    return {
        **{"strategy": method, "server-opt": server_opt, "task": task, "model": built, "partition": "iid"},
        **{"trace": "always", "num-clients": clients, "num-rounds": 10**6, "evaluate-every": 10**6},
        **{"local-steps": 1, "batch-size": 1, "learning-rate": 0.01, "checkpoint-every": -1},
        **{"engine": engine, "client-gpus": 0.0, "data-dir": data_dir},
    }


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--models", default=",".join(MODELS), help="which, of the benchmark's")
    parser.add_argument("--clients", default="20,100,400,1000", help="values of K")
    parser.add_argument("--engines", default="inline,ray")
    parser.add_argument("--strategies", default="fedavg", help="also with a server optimiser: fedavg+adam")
    parser.add_argument("--rounds", type=int, default=2, help="rounds to time (default: 2)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="limit of one run in seconds")
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args()
    models = named_workloads(parser, arguments.models, MODELS)
    cases = itertools.product(
        models,
        arguments.strategies.split(","),
        arguments.engines.split(","),
        map(int, arguments.clients.split(",")),
    )
    about, results = machine(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="fedtide-memory-") as scratch:
        data_dir, note = ensure_mnist(str(Path(arguments.data_dir).resolve()), scratch)
        for model, strategy, engine, clients in cases:
            settings = settings_of(model, clients, engine, strategy, data_dir)
            job = {"module": "with_fedtide", "settings": settings, "rounds": arguments.rounds}
            measured = measure(job, arguments.timeout)
            named = {"model": model, "strategy": strategy, "engine": engine, "clients": clients}
            results.append({**named, **measured.as_json()})
            print(f"# {results[-1]}", file=sys.stderr, flush=True)
    header = ["M", "strategy", "engine", "K", "peak MiB", "s per round", "weights afterwards"]
    rows = [
        [
            *(f"{MODELS[r['model']][2]:,}", r["strategy"], r["engine"], f"{r['clients']:,}"),
            *(mebibytes(max(r["peak_bytes"] or 0, r.get("driver_peak_bytes", 0))), r["seconds_per_round"]),
            r.get("error") or r["weights_sha256"][:8],
        ]
        for r in results
    ]
    print(f"{table(header, rows)}\n\n{note}\n{PEAK}\n")
    print(machine_line(about))
    write_json(arguments.json, machine=about, note=note, results=results)


if __name__ == "__main__":
    main()
