"""Seconds a round and memory of the papers' models, in every engine: the table of docs/tasks.md.

    python benchmarks/models.py
    python benchmarks/models.py --only resnet18 --engines inline

In a round 4 clients do 2 local steps of 20 examples each, on random data in the shapes of the data set, and
nothing is evaluated. Memory is that of all processes of the run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measure import Job, machine, machine_line, measure, mebibytes, shown, table, write_json

IMAGES, TEXTS = "benchmarks.stand_in.images", "benchmarks.stand_in.texts"
COLOUR, EMNIST = f"{IMAGES}:channels=3,side=32", f"{IMAGES}:channels=1,side=28,classes=47"
ENGINES = {"inline": "with_fedtide", "ray": "with_fedtide", "flwr": "with_flwr_run"}


class Case(NamedTuple):
    """A data set's stand-in, and a model."""

    data: str
    task: str
    model: str


CASES = (
    Case("MNIST", f"{IMAGES}:channels=1,side=28", "mlp"),
    Case("MNIST", f"{IMAGES}:channels=1,side=28", "cnn"),
    Case("EMNIST", EMNIST, "vgg11:width=32"),
    Case("EMNIST", EMNIST, "vgg11:norm=batch,dropout=0.5"),
    Case("CIFAR-10, SVHN", COLOUR, "lenet:padding=0"),
    Case("CIFAR-10, SVHN", COLOUR, "cnn3x3"),
    Case("CIFAR-10, SVHN", COLOUR, "vgg11"),
    Case("CIFAR-10, SVHN", COLOUR, "resnet18"),
    Case("CIFAR-10, SVHN", COLOUR, "resnet18:norm=batch"),
    Case("CIFAR-100", f"{COLOUR},classes=100", "resnet50"),
    Case("Shakespeare", TEXTS, "lstm:vocabulary=80"),
    Case(
        "Sentiment140",
        f"{TEXTS}:length=25,words=10000,classes=2",
        "lstm:embedding=25,hidden=16,vocabulary=10000",
    ),
)


def settings_of(case: Case, engine: str) -> dict[str, Any]:
    """Return the settings of a run."""
    return {
        "strategy": "fedavg",
        "task": case.task,
        "model": case.model,
        "partition": "iid",
        "trace": "always",
        "num-clients": 4,
        "clients-per-round": 4,
        "num-rounds": 10**6,
        "evaluate-every": 10**6,
        "local-steps": 2,
        "batch-size": 20,
        "learning-rate": 0.01,
        "report": False,
        "client-gpus": 0.0,
        **({} if engine == "flwr" else {"engine": engine, "num-workers": 2 if engine == "ray" else 0}),
    }


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has it")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES])
    parser.add_argument("--rounds", type=int, default=3, help="timed, after a first one")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    about, rows, results = machine(), [], []
    for case in CASES:
        if args.only not in case.model:
            continue
        row: list[Any] = [case.data, f"`{case.model}`"]
        for engine in args.engines:
            job: Job = {
                "module": ENGINES[engine],
                "settings": settings_of(case, engine),
                "rounds": args.rounds,
            }
            measured = measure(job, timeout=600.0)
            seconds = measured.notes.get("seconds", measured.seconds)
            row += [seconds, mebibytes(measured.peak_bytes)]
            results.append({**case._asdict(), "engine": engine, **measured.as_json(), "seconds": seconds})
            told = measured.error or f"{shown(seconds)} s, {mebibytes(measured.peak_bytes)} MiB"
            print(f"{case.data}, {case.model}, {engine}: {told}", file=sys.stderr, flush=True)
        rows.append(row)
    header = ["data", "model", *(f"{engine} {what}" for engine in args.engines for what in ("s", "MiB"))]
    print(table(header, rows))
    print("\n" + machine_line(about))
    write_json(args.json, machine=about, results=results)


if __name__ == "__main__":
    main()
