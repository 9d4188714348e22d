"""A round on a cluster: how long it takes, and how much of it goes over the network.

    python benchmarks/cluster.py --data-dir data
    python benchmarks/cluster.py --nodes 2 --weights 1e7 --strategies fedavg

The nodes of the cluster, each with one core, are processes of this machine, and the driver is on the first.
All clients of a federation of K do one step of batch 1; the first round is not timed. The bytes are those of
all connections of the machine, the broadcast's too (on Linux).
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import machine, machine_line, measure, mebibytes, table, write_json
from benchmarks.scaling import hidden_units, weights_of
from benchmarks.workloads import ensure_mnist

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

store = {"num_cpus": 1, "object_store_memory": int(float(sys.argv[2]) * 2**30)}
cluster = Cluster(initialize_head=True, head_node_args={**store, "include_dashboard": False})
for _ in range(int(sys.argv[1]) - 1):
    cluster.add_node(**store)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
PATIENCE = 60.0  # seconds in which a cluster ends
LOGISTIC = 7_850  # weights on MNIST


@contextmanager
def cluster(nodes: int, store: float) -> Iterator[str]:
    """Start a cluster in a temporary folder of its own and return its address.

    Each node gets an object store of so many GiB.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, "-c", CLUSTER, str(nodes), str(store)]
        with subprocess.Popen(
            command, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin
            assert process.stdout
            yield process.stdout.readline().strip()
            process.stdin.close()
            process.wait(PATIENCE)


def settings_of(weights: int, clients: int, strategy: str, data_dir: str, address: str) -> dict[str, Any]:
    """Return the settings of a run."""
    model = "logistic" if weights == LOGISTIC else f"mlp:hidden={hidden_units(weights)}"
    return {
        **{"strategy": strategy, "task": "mnist", "model": model, "partition": "iid", "trace": "always"},
        **{"num-clients": clients, "num-rounds": 10**6, "evaluate-every": 10**6, "local-steps": 1},
        **{"batch-size": 1, "learning-rate": 0.01, "checkpoint-every": -1, "client-gpus": 0.0},
        **{"data-dir": data_dir, "ray-address": address},
    }


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--store", type=float, default=3.0, help="GiB of each node's object store")
    parser.add_argument("--weights", default=f"{LOGISTIC},1e6,1e7", help=f"values of M; {LOGISTIC}: logistic")
    parser.add_argument("--clients", default="100", help="values of K")
    parser.add_argument("--strategies", default="fedavg,mifa")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to time (default: 5)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="limit of one run in seconds")
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args()
    cases = itertools.product(
        (int(float(text)) for text in arguments.weights.split(",")),
        map(int, arguments.clients.split(",")),
        arguments.strategies.split(","),
    )
    about, results = machine(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="fedtide-cluster-") as scratch:
        data_dir, note = ensure_mnist(str(Path(arguments.data_dir).resolve()), scratch)
        for weights, clients, strategy in cases:
            with cluster(arguments.nodes, arguments.store) as address:
                settings = settings_of(weights, clients, strategy, data_dir, address)
                job = {"module": "with_fedtide", "settings": settings, "rounds": arguments.rounds}
                measured = measure(job, arguments.timeout)
            size = weights if weights == LOGISTIC else weights_of(hidden_units(weights))
            named = {"weights": size, "clients": clients, "strategy": strategy}
            results.append({**named, **measured.as_json()})
            print(f"# {results[-1]}", file=sys.stderr, flush=True)
    header = ["M", "K", "strategy", "s per round", "MiB over the network", "driver's MiB", "weights"]
    rows = [
        [
            *(f"{r['weights']:,}", r["clients"], r["strategy"], r["seconds_per_round"]),
            *(mebibytes(r.get("network_bytes_per_round")), mebibytes(r.get("driver_peak_bytes"))),
            r.get("error") or r["weights_sha256"][:8],
        ]
        for r in results
    ]
    print(f"{table(header, rows)}\n\n{note}\n{machine_line(about)}")
    write_json(arguments.json, machine=about, note=note, results=results)


if __name__ == "__main__":
    main()
