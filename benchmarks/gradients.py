"""CPU milliseconds per client, one way of computing gradients against another.

    python benchmarks/gradients.py --data-dir data

Each way first finds its fastest size of a cohort. Then both train the same clients in turns (A B A B ...), so
that whatever else the machine does affects both. A ratio above 1 says how many times faster A is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import machine, machine_line, table, write_json
from benchmarks.workloads import WORKLOADS, ensure_mnist, named_workloads, settings_of
from clients.gradients.chain import Chain
from clients.gradients.compiled_chain import CompiledChain
from clients.gradients.flat import FlatModel
from clients.gradients.linear import Compiled, StackedLinear
from clients.gradients.oracle import CohortOracle, Loop, Vmap
from clients.simulated.jobs import Broadcast, Job
from clients.simulated.virtual import ClientEnvironment, VirtualClients
from fedtide.base.contract import FitConfig
from fedtide.config import Settings
from fedtide.federation import Federation

WAYS: dict[str, Callable[[FlatModel], CohortOracle]] = {
    "compiled": Compiled,
    "stacked": StackedLinear,
    "compiled-chain": CompiledChain,
    "chain": Chain,
    "vmap": Vmap,
    "loop": Loop,
}
SIZES = {
    "compiled": (128,),
    "stacked": (2, 4, 8, 16, 32, 64),
    "compiled-chain": (1,),
    "chain": (1,),
    "vmap": (2, 4, 8),
    "loop": (1,),
}


class Comparison(NamedTuple):
    """Two ways on a workload, and how many clients a measurement trains."""

    workload: str
    a: str
    b: str
    clients: int


COMPARISONS = (
    Comparison("fedlaavg", "compiled", "stacked", 100),
    Comparison("fedlaavg", "stacked", "loop", 100),
    Comparison("2nn", "compiled", "stacked", 20),
    Comparison("2nn", "stacked", "loop", 20),
    Comparison("lenet", "compiled-chain", "chain", 12),
    Comparison("lenet", "chain", "loop", 12),
    Comparison("cnn", "chain", "loop", 3),
    Comparison("tutorial", "compiled-chain", "chain", 4),
    Comparison("tutorial", "chain", "loop", 4),
    Comparison("pfl", "chain", "loop", 10),
    Comparison("pfl", "vmap", "loop", 10),
)
COMPARED = list(dict.fromkeys(comparison.workload for comparison in COMPARISONS))


class Clients:
    """Clients of a workload that train in whichever way is asked for.

    Parameters
    ----------
    workload
        One of `WORKLOADS`.
    num_clients, count
        Clients in the federation, and how many of them train.
    data_dir
        Where MNIST is.
    """

    def __init__(self, workload: str, num_clients: int, count: int, data_dir: str) -> None:
        values = settings_of(WORKLOADS[workload], num_clients, count, data_dir)
        settings = Settings.from_mapping(values, "benchmark")
        federation = Federation.of(settings)
        data, build_model = federation.data, federation.model_builder()
        self.virtual = VirtualClients(ClientEnvironment(data, build_model, settings.seed, cohort="loop"))
        self.broadcast = Broadcast(self.virtual.model.vector.numpy().copy())
        config = FitConfig(
            round=1,
            local_steps=settings.local_steps,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
        )
        self.jobs = [Job(k, [], config, 1.0) for k in range(count)]

    def milliseconds(self, way: str, size: int) -> float:
        """Train all clients, and return the CPU time per client.

        Raises
        ------
        RuntimeError
            A client failed.
        """
        self.virtual.oracle, self.virtual.limit = WAYS[way](self.virtual.model), size
        start = time.process_time()
        answers = self.virtual.fit(self.broadcast, self.jobs)
        seconds = time.process_time() - start
        if answers.failures:
            raise RuntimeError(f"{way}: client {answers.failures[0][0]}: {answers.failures[0][1]}")
        return 1000 * seconds / len(self.jobs)

    def fastest_size(self, way: str, trials: int) -> int:
        """Return the size of a cohort with the shortest trial; the first trial of each is a warm-up."""
        times = {
            size: min([self.milliseconds(way, size) for _ in range(1 + trials)][1:]) for size in SIZES[way]
        }
        return min(times, key=lambda size: times[size])


def compare(comparison: Comparison, num_clients: int, pairs: int, data_dir: str) -> dict[str, Any]:
    """Measure both ways of a comparison in turns."""
    workload, a, b, count = comparison
    clients = Clients(workload, num_clients, min(count, num_clients), data_dir)
    sizes = {way: clients.fastest_size(way, min(5, pairs)) for way in (a, b)}
    taken = [{way: clients.milliseconds(way, sizes[way]) for way in (a, b)} for _ in range(pairs)]
    ratios = [times[b] / times[a] for times in taken]
    return {
        "workload": workload,
        "ways": [a, b],
        "sizes": [sizes[a], sizes[b]],
        "milliseconds": [statistics.median(times[way] for times in taken) for way in (a, b)],
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
    }


def describe(results: list[dict[str, Any]]) -> str:
    """Return the table."""
    header = ["workload", "A", "B", "A ms", "B ms", "B / A", "from", "to"]
    rows = []
    for result in results:
        ways = [f"{way} ({size})" for way, size in zip(result["ways"], result["sizes"], strict=True)]
        rows.append([result["workload"], *ways, *result["milliseconds"], result["ratio"], *result["range"]])
    return table(header, rows)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--workloads", default=",".join(COMPARED), help="which to compare on (default: all)")
    add("--num-clients", type=int, default=1000, help="N (default: 1000)")
    add("--pairs", type=int, default=15, help="measurements of each way (default: 15)")
    add("--data-dir", default="data", help="MNIST is looked for and downloaded here")
    add("--json", type=Path, metavar="FILE", help="keep the numbers")
    arguments = parser.parse_args()
    named_workloads(parser, arguments.workloads, COMPARED)
    if arguments.pairs < 1:
        parser.error(f"--pairs is {arguments.pairs}; it must be at least 1")
    return arguments


def main() -> None:
    """Measure and print the table."""
    arguments, about, results = parse(), machine(), []
    with tempfile.TemporaryDirectory(prefix="fedtide-gradients-") as scratch:
        data_dir, note = ensure_mnist(str(Path(arguments.data_dir).resolve()), scratch)
        for comparison in COMPARISONS:
            if comparison.workload in arguments.workloads.split(","):
                results.append(compare(comparison, arguments.num_clients, arguments.pairs, data_dir))
                print(f"# {results[-1]}", file=sys.stderr, flush=True)
    print(
        f"CPU milliseconds per client and round, in cohorts of the size in brackets; medians of "
        f"{arguments.pairs} pairs. {note}\n\n{describe(results)}\n\n{machine_line(about)}"
    )
    write_json(arguments.json, machine=about, note=note, results=results)


if __name__ == "__main__":
    main()
