"""The server's step: `configure_fit` and `aggregate_fit` of every strategy, with replies of real clients.

    python benchmarks/server_step.py --data-dir data       # K = 100 replies of 8,000 weights
    python benchmarks/server_step.py --large               # N = 1,000, M = 1,000,000, both memory modes

Replies come as virtual clients return them (one vector in memory), and as the bytes that Flower sends. With
`--large` each method runs in a separate process, whose memory is measured, clients and replies included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from flwr.common import FitRes, Parameters

from benchmarks.measure import Clock, Job, machine, machine_line, measure, mebibytes, table, write_json
from benchmarks.workloads import WORKLOADS, ensure_mnist, settings_of
from fedtide.config import Settings
from fedtide.engine.availability import TraceClientManager
from fedtide.engine.experiment import prepare
from fedtide.engine.run import virtual_transport
from fedtide.plan import Plan
from strategies import STRATEGIES

LARGE = ("mimic", "mifa", "fedlaavg")
MODES = ("server", "client")


def time_rounds(
    settings: Settings, rounds: int, as_bytes: bool = False, clock: Clock | None = None
) -> dict[str, Any]:
    """Run rounds with clients in this process; returns the median milliseconds of both steps.

    Raises
    ------
    RuntimeError
        A client failed, or its reply was rejected.
    """
    experiment = prepare(Plan.of(settings))
    strategy = experiment.strategy
    transport = virtual_transport(experiment)
    manager = TraceClientManager(experiment.clock.round, transport, settings.seed)
    current: Parameters | None = strategy.initialize_parameters(manager)
    taken: dict[str, list[float]] = {"configure_ms": [], "aggregate_ms": []}
    for number in range(1, rounds + 1):
        assert current is not None
        manager.begin(number)
        start = time.perf_counter()
        instructions = strategy.configure_fit(number, current, manager)
        taken["configure_ms"].append(1000 * (time.perf_counter() - start))
        table, failures = transport.fit(number, instructions, None)
        results: Any = table
        if as_bytes:
            results = [(proxy, _serialised(result)) for proxy, result in table.as_flower(transport.proxy)]
        start = time.perf_counter()
        current, _ = strategy.aggregate_fit(number, results, list(failures))
        taken["aggregate_ms"].append(1000 * (time.perf_counter() - start))
        if failures or strategy.report.rejected:
            raise RuntimeError(f"round {number}: {[*failures, *strategy.report.rejected][0]}")
        if clock is not None:
            clock.tick()
    transport.close()
    return {name: statistics.median(values[1:] or values) for name, values in taken.items()} | {
        "numbers": len(strategy.weights)
    }


def _serialised(result: FitRes) -> FitRes:
    """Return a reply as it arrives over the network."""
    parameters = Parameters(list(result.parameters.tensors), result.parameters.tensor_type)
    return FitRes(result.status, parameters, result.num_examples, result.metrics)


def run(job: Job, clock: Clock) -> None:
    """Run one strategy of the large table, in this process."""
    settings = Settings.from_mapping({**job["settings"], "run-dir": job["scratch"]}, "benchmark")
    clock.note(**time_rounds(settings, job["rounds"], clock=clock))


def small(names: Sequence[str], values: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """Time each strategy with replies of both kinds."""
    results = []
    for name in names:
        settings = Settings.from_mapping({**values, "strategy": name}, "benchmark")
        result: dict[str, Any] = {"strategy": name}
        try:
            result |= time_rounds(settings, rounds)
            result["aggregate_bytes_ms"] = time_rounds(settings, rounds, as_bytes=True)["aggregate_ms"]
        except Exception as error:  # the other strategies are still measured
            result["error"] = f"{type(error).__name__}: {error}"
        print(f"# {result}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def large(names: list[str], values: dict[str, Any], rounds: int, timeout: float) -> list[dict[str, Any]]:
    """Time the methods that store one vector per client, in both memory modes."""
    results = []
    for name in names:
        for mode in MODES:
            chosen = {**values, "strategy": f"{name}:memory={mode}"}
            try:
                Plan.of(Settings.from_mapping(chosen, "benchmark"))
            except ValueError:
                if mode != "server":
                    continue
                chosen["strategy"] = name  # a method without the option has this mode only
            job = {"module": "server_step", "settings": chosen, "rounds": rounds}
            measured = measure(job, timeout)
            results.append({"strategy": name, "memory": mode, **measured.as_json()})
            print(f"# {results[-1]}", file=sys.stderr, flush=True)
    return results


def describe(results: list[dict[str, Any]]) -> str:
    """Return the table of `small` or of `large`."""
    if any("memory" in result for result in results):
        header = ["strategy", "memory", "configure_fit s", "aggregate_fit s", "peak MiB"]
        rows = [
            [r["strategy"], r["memory"], *_seconds(r), mebibytes(r["peak_bytes"]), r.get("error", "")]
            for r in results
        ]
    else:
        header = ["strategy", "configure_fit ms", "aggregate_fit ms", "aggregate_fit ms, from bytes"]
        keys = ("configure_ms", "aggregate_ms", "aggregate_bytes_ms")
        rows = [[r["strategy"], *(r.get(key) for key in keys), r.get("error", "")] for r in results]
    if not any(row[-1] for row in rows):
        return table(header, [row[:-1] for row in rows])
    return table([*header, "error"], rows)


def _seconds(result: dict[str, Any]) -> list[float | None]:
    values = [result.get(key) for key in ("configure_ms", "aggregate_ms")]
    return [None if value is None else value / 1000 for value in values]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--strategies", default="", help=f"default: all; with --large {','.join(LARGE)}")
    parser.add_argument("--num-clients", type=int, default=1000, help="N (default: 1000)")
    parser.add_argument("--clients-per-round", type=int, default=100, help="K (default: 100)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds per strategy (default: 15)")
    parser.add_argument(
        "--large", action="store_true", help="the table of methods with one vector per client"
    )
    parser.add_argument(
        "--hidden", type=int, default=965, help="hidden units of the large model (965: M = 1,000,000)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="limit of one method in seconds (default: 1800)"
    )
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    """Measure and print the table."""
    arguments, about = parse(), machine()
    count, names = arguments.clients_per_round, list(filter(None, arguments.strategies.split(",")))
    with tempfile.TemporaryDirectory(prefix="fedtide-server-step-") as scratch:
        data_dir = str(Path(arguments.data_dir).resolve())
        values = settings_of(WORKLOADS["fedlaavg"], arguments.num_clients, count, data_dir)
        values |= {"engine": "inline", "local-steps": 2, "num-rounds": max(1, arguments.rounds)}
        note = ""
        if arguments.large:
            values |= {"task": "synthetic", "model": f"mlp:hidden={arguments.hidden}", "partition": ""}
            results = large(names or list(LARGE), values, arguments.rounds, arguments.timeout)
        else:
            values["data-dir"], note = ensure_mnist(data_dir, scratch)
            results = small(names or list(STRATEGIES), values, arguments.rounds)
    numbers = max((r.get("numbers", 0) for r in results), default=0)
    text = (
        f"N = {arguments.num_clients:,}, K = {count:,} replies of M = {numbers:,} weights; median of "
        f"{arguments.rounds} rounds without the first. {note}\n\n{describe(results)}\n\n"
        f"{machine_line(about)}\n"
    )
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")
    write_json(arguments.json, machine=about, note=note, results=results)


if __name__ == "__main__":
    main()
