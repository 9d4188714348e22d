"""Clients per second: fedtide, other programs, and what is written by hand for the same work.

    python benchmarks/throughput.py --data-dir data
    python benchmarks/throughput.py --workload 2nn --contenders ray,inline,bare --seconds 30
    python benchmarks/throughput.py --data-dir data --pfllib PFLlib --afl-lib AFL-Lib    # checkouts of them

FedLaAvg's setting: MNIST, 1,000 clients of 60 images, logistic regression, 10 local steps of batch 5. The
contenders run in turns, in separate processes. Failed work is an error, not a result.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import (
    Job,
    Measured,
    machine,
    machine_line,
    measure,
    mebibytes,
    shown,
    table,
    write_json,
)
from benchmarks.workloads import WORKLOADS, Workload, ensure_data, job_of, settings_of, write_shards

CONTENDERS = {
    "ray": "fedtide on Ray",
    "inline": "fedtide inline",
    "c": "C, written for this work",
    "jax": "JAX, written for this work",
    "bare": "plain PyTorch loop",
    "bare-busy": "plain PyTorch loop on one core, all other cores doing the same",
    "flower-classic": "stock Flower, classic loop",
    "flower-tuned": "stock Flower, classic loop, `set_max_workers(K)`",
    "flower-message": "stock Flower, Message API",
    "pfl": "pfl-research, one process",
    "blazefl": "BlazeFL, process pool with shared memory",
    "blazefl-threads": "BlazeFL, thread pool",
    "fedjax": "FedJAX",
    "flgo": "FLGo",
    "pfllib": "PFLlib",
    "afllib": "AFL-Lib",
}
OURS = ("ray", "inline")
MODULES = {"bare": "with_torch", "afllib": "with_afl_lib"}  # of others: with_ and the name
PACKAGES = ("pfl", "blazefl", "jax", "fedjax", "flgo")  # what contenders need besides requirements.txt
CHECKOUTS = {"pfllib": "pfllib", "afllib": "afl-lib"}  # contenders without a package, and their flags


def job_for(
    contender: str,
    workload: Workload,
    sizes: tuple[int, int],
    places: tuple[str, str],
    changes: dict[str, Any],
    checkouts: dict[str, Path],
) -> Job:
    """Return the job of one contender; sizes are N and K, places the directories of MNIST and the shards."""
    if contender in OURS:
        settings = {**settings_of(workload, *sizes, places[0]), "engine": contender, **changes}
        return {"module": "with_fedtide", "settings": settings}
    job = job_of(workload, *sizes, places[1])
    kind, _, api = contender.partition("-")
    if kind in CHECKOUTS:
        job["checkout"] = str(checkouts[kind].resolve())
    return {"module": MODULES.get(kind, f"with_{kind}"), "api": api, **job}


def contenders_of(names: str, checkouts: dict[str, Path]) -> list[str]:
    """Return the contenders to run; by default, all that are installed."""
    if names:
        chosen = names.split(",")
        if unknown := sorted(set(chosen) - set(CONTENDERS)):
            raise SystemExit(f"unknown contender {unknown[0]!r}; known: {', '.join(CONTENDERS)}")
        for name in chosen:
            if name in CHECKOUTS and name not in checkouts:
                raise SystemExit(f"{name} needs a checkout: --{CHECKOUTS[name]} FOLDER")
        return chosen
    kinds = {package for package in PACKAGES if not importlib.util.find_spec(package)}
    kinds |= set() if shutil.which("cc") else {"c"}
    kinds |= CHECKOUTS.keys() - checkouts.keys()
    missing = [name for name in CONTENDERS if name.partition("-")[0] in kinds]
    if missing:
        print(f"# not installed or not given, and skipped: {', '.join(missing)}", file=sys.stderr)
    return [name for name in CONTENDERS if name not in missing]


def in_turns(jobs: dict[str, Job], turns: int, timeout: float, clients: int) -> list[dict[str, Any]]:
    """Measure every job as often as there are turns, all of them in each turn; return their results."""
    measured: dict[str, list[Measured]] = {name: [] for name in jobs}
    for turn in range(turns):
        for name, job in jobs.items():
            if any(one.error for one in measured[name]):
                continue  # it would fail again
            measured[name].append(one := measure(job, timeout))
            rate = clients / one.seconds if one.seconds else None
            told = f"# K = {clients}, turn {turn + 1}, {name}: {rate} clients/s {one.error}"
            print(told, file=sys.stderr, flush=True)
    return [result_of(name, clients, of_job) for name, of_job in measured.items()]


def result_of(name: str, clients: int, measured: list[Measured]) -> dict[str, Any]:
    """Return the result of a contender: the median of its turns, with the slowest and the fastest."""
    rates = sorted(clients / one.seconds for one in measured if one.seconds)
    failed = next((one.error for one in measured if one.error), "")
    return {
        "clients_per_round": clients,
        "contender": name,
        **measured[-1].as_json(),
        "clients_per_second": statistics.median(rates) if rates and not failed else None,
        "turns": rates,
        "rounds": sum(len(one.round_seconds) for one in measured),
    }


def describe(results: list[dict[str, Any]]) -> str:
    """Return a table of all results."""
    rows = []
    for result in results:
        error = result.get("error", "")
        rate = result["clients_per_second"]
        rows.append(
            [
                f"{result['clients_per_round']:,}",
                CONTENDERS[result["contender"]] + (f": {error}" if error else ""),
                rate,
                f"{shown(result['turns'][0])} to {shown(result['turns'][-1])}" if rate else None,
                result["rounds"],
                result["start_seconds"],
                mebibytes(result["peak_bytes"]),
                result["ratio"],
            ]
        )
    header = [
        "K",
        "",
        "clients/s",
        "turns",
        "rounds timed",
        "start-up s",
        "peak MiB",
        "fedtide is faster by",
    ]
    return table(header, rows)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--workload", default="fedlaavg", choices=list(WORKLOADS))
    parser.add_argument(
        "--contenders", default="", help=f"of {','.join(CONTENDERS)} (default: all installed)"
    )
    parser.add_argument("--num-clients", type=int, default=1000, help="N (default: 1000)")
    parser.add_argument("--clients-per-round", default="100", help="values of K (default: 100)")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds to time (default: as many as --seconds allows)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="how long to time rounds, in all turns, at least two each (default: 20)",
    )
    parser.add_argument(
        "--turns", type=int, default=3, help="how often each contender runs, in turns (default: 3)"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="limit of one contender in seconds (default: 1800)"
    )
    parser.add_argument("--data-dir", default="data", help="directory of MNIST, downloaded if missing")
    for contender, flag in CHECKOUTS.items():
        about = f"a checkout of {CONTENDERS[contender]}"
        parser.add_argument(f"--{flag}", dest=contender, type=Path, metavar="FOLDER", help=about)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of fedtide (TOML)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    """Run all contenders and print the table."""
    arguments = parse()
    checkouts = {name: path for name in CHECKOUTS if (path := getattr(arguments, name))}
    contenders, about = contenders_of(arguments.contenders, checkouts), machine()
    counts = [int(count) for count in arguments.clients_per_round.split(",")]
    changes: dict[str, Any] = {}
    for change in arguments.set:
        changes |= tomllib.loads(change)
    workload, results = WORKLOADS[arguments.workload], []
    with tempfile.TemporaryDirectory(prefix="fedtide-throughput-") as scratch:
        data_dir, note = ensure_data(workload, str(Path(arguments.data_dir).resolve()), scratch)
        write_shards(Path(scratch), workload, arguments.num_clients, data_dir)
        for count in counts:
            amount = {"rounds": arguments.rounds, "seconds": arguments.seconds / arguments.turns}
            sizes, places = (arguments.num_clients, count), (data_dir, scratch)
            rest = workload, sizes, places, changes, checkouts
            jobs = {name: job_for(name, *rest) | amount for name in contenders}
            of_count = in_turns(jobs, arguments.turns, arguments.timeout, count)
            ours = [r["clients_per_second"] or 0.0 for r in of_count if r["contender"] in OURS]
            reference = max(ours, default=0.0)
            for result in of_count:
                rate = result["clients_per_second"]
                result["ratio"] = reference / rate if reference and rate else None
            results += of_count
    print(
        f"{arguments.workload}: {workload.model}, {arguments.num_clients:,} clients, K of them per round, "
        f"{workload.local_steps} local steps of batch {workload.batch_size}. {note}\n"
    )
    print(describe(results))
    print(
        "\nClients/s: K divided by the median duration of a round, without the first; the median of the "
        "turns, and the slowest and the fastest of them. Start-up, in the last turn: from the start of the "
        "process to the end of the first round, minus a median round. Peak: sum of the "
        f"proportional set sizes of all processes.\n\n{machine_line(about)}"
    )
    write_json(
        arguments.json,
        machine=about,
        workload=arguments.workload,
        note=note,
        changes=changes,
        results=results,
    )


if __name__ == "__main__":
    main()
