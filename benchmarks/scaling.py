"""How the duration of a round scales with the clients N, the cohort K, the workers, and the model.

    python benchmarks/scaling.py --data-dir data
    python benchmarks/scaling.py --sections clients --clients 1000,1000000

Each row of the table is a separate run on Ray, whose first round is not timed.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import machine, machine_line, measure, mebibytes, table, write_json
from benchmarks.workloads import WORKLOADS, ensure_mnist, settings_of

SECTIONS = ("clients", "cohort", "workers", "models")
INPUTS, CLASSES = 784, 10  # of MNIST


def hidden_units(num_weights: int) -> int:
    """Return the hidden units with which the two-layer perceptron on MNIST has about this many weights."""
    linear = INPUTS + CLASSES + 2
    return max(1, round((math.sqrt(linear**2 + 4 * (num_weights - CLASSES)) - linear) / 2))


def weights_of(hidden: int) -> int:
    """Return the number of weights M of that model."""
    return hidden**2 + (INPUTS + CLASSES + 2) * hidden + CLASSES


def cases(
    arguments: argparse.Namespace, data_dir: str
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (section, varied values, settings) of each run."""

    def whole(text: str) -> list[int]:
        return [int(float(part)) for part in text.split(",")]

    few = min(1000, arguments.max_clients)
    cohort = min(arguments.cohort, few)

    def base(workload: str, num_clients: int, clients_per_round: int) -> dict[str, Any]:
        values = settings_of(WORKLOADS[workload], num_clients, clients_per_round, data_dir)
        return {**values, "engine": arguments.engine}

    sections = arguments.sections.split(",")
    if "clients" in sections:
        for count in whole(arguments.clients):
            values = base("fedlaavg", count, min(cohort, count))
            yield "clients", {"N": count}, {**values, "task": "synthetic", "partition": ""}
    if "cohort" in sections:
        for count in whole(arguments.cohorts):
            yield "cohort", {"K": count}, base("fedlaavg", max(few, count), count)
    if "workers" in sections:
        for workload in arguments.workloads.split(","):
            for workers in whole(arguments.workers):
                varied = {"workload": workload, "workers": workers}
                yield "workers", varied, {**base(workload, few, cohort), "num-workers": workers}
    if "models" in sections:
        for num_weights in whole(arguments.models):
            hidden = hidden_units(num_weights)
            count = min(arguments.model_cohort, few)
            values = {**base("fedlaavg", few, count), "model": f"mlp:hidden={hidden}"}
            yield "models", {"M": weights_of(hidden), "K": count}, values


def describe(results: list[dict[str, Any]]) -> str:
    """Return one table per section."""
    parts = []
    for section in SECTIONS:
        chosen = [r for r in results if r["section"] == section]
        if not chosen:
            continue
        varied = list(chosen[0]["varied"])
        header = [*varied, "ms per round", "clients/s", "rounds timed", "start-up s", "peak MiB"]
        rows = []
        for r in chosen:
            seconds = r["seconds_per_round"]
            names = [f"{v:,}" if isinstance(v, int) else v for v in r["varied"].values()]
            speed = [None, None] if seconds is None else [1000 * seconds, r["clients_per_round"] / seconds]
            rows.append([*names, *speed, r["rounds"], r["start_seconds"], mebibytes(r["peak_bytes"])])
        parts.append(f"{section}:\n\n{table(header, rows)}")
        parts += [f"{r['varied']}: {r['error']}" for r in chosen if r.get("error")]
    return "\n\n".join(parts)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--sections", default=",".join(SECTIONS), help="what to vary (default: all of it)")
    add("--clients", default="1e3,1e4,1e5,1e6", help="values of N, task synthetic (default: 1e3,1e4,1e5,1e6)")
    add("--cohort", type=int, default=100, help="K if it is not varied (default: 100)")
    add("--cohorts", default="10,30,100,300,1000", help="values of K (default: 10,30,100,300,1000)")
    add("--workers", default="1,2", help="numbers of Ray actors (default: 1,2)")
    add("--workloads", default="fedlaavg,2nn", help=f"for the workers, of {','.join(WORKLOADS)}")
    add("--models", default="1e4,1e5,1e6,1e7", help="numbers of weights M (default: 1e4,1e5,1e6,1e7)")
    add("--model-cohort", type=int, default=20, help="K of the runs that vary M (default: 20)")
    add("--max-clients", type=int, default=1000, help="N of the other sections (default: 1000)")
    add("--engine", default="ray", choices=("ray", "inline"))
    add("--rounds", type=int, default=0, help="rounds to time (default: as many as --seconds allows)")
    add("--seconds", type=float, default=10.0, help="how long to time rounds, at least two (default: 10)")
    add("--timeout", type=float, default=1800.0, help="limit of one run in seconds (default: 1800)")
    add("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting (TOML)")
    add("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    """Run all cases and print the tables."""
    arguments, about, results, note = parse(), machine(), [], ""
    changes: dict[str, Any] = {}
    for change in arguments.set:
        changes |= tomllib.loads(change)
    with tempfile.TemporaryDirectory(prefix="fedtide-scaling-") as scratch:
        data_dir = str(Path(arguments.data_dir).resolve())
        if arguments.sections != "clients":
            data_dir, note = ensure_mnist(data_dir, scratch)
        for section, varied, settings in cases(arguments, data_dir):
            job = {"module": "with_fedtide", "settings": {**settings, **changes}}
            measured = measure(
                {**job, "rounds": arguments.rounds, "seconds": arguments.seconds}, arguments.timeout
            )
            print(f"# {section} {varied}: {measured.seconds} s {measured.error}", file=sys.stderr, flush=True)
            results.append(
                {
                    "section": section,
                    "varied": varied,
                    "clients_per_round": settings["clients-per-round"],
                    **measured.as_json(),
                }
            )
    print(f"Logistic regression and 10 local steps of batch 5, unless stated otherwise. {note}\n")
    print(describe(results))
    print(f"\n{machine_line(about)}")
    write_json(arguments.json, machine=about, note=note, changes=changes, results=results)


if __name__ == "__main__":
    main()
