"""Runs all combinations of the settings that an experiment varies, and prints a table.

    python experiments/compare.py experiments/ruan-table3-mnist.toml [--set num-rounds=10]

An experiment is a TOML file of settings (see `sim.py --help`) with a table `[vary]`: lists of values for some
of them. Runs that differ only in the seed form one row: mean and standard deviation of the test accuracy over
seeds, and the mean cost: replies that counted, megabytes uploaded and downloaded by the clients. With
`--reach 0.8`, a row also has the first evaluated round with that accuracy, for each seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from flexfl.config import Settings
from flexfl.engine.availability import remember
from flexfl.engine.run import drive, prepare, virtual_transport
from flexfl.engine.run_folder import RunFolder


def combinations(experiment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each run."""
    fixed = {key: value for key, value in experiment.items() if key != "vary"}
    keys, values = zip(*experiment.get("vary", {"seed": [0]}).items(), strict=True)
    for chosen in itertools.product(*values):
        yield fixed | dict(zip(keys, chosen, strict=True))


def run(values: dict[str, Any], source: str) -> dict[str, Any]:
    """Run one combination; returns its summary."""
    settings = Settings.from_mapping(values, source)
    experiment = prepare(settings)
    availability = remember(experiment.trace)
    transport = virtual_transport(experiment, availability)
    return drive(experiment, transport, availability, RunFolder(experiment.settings), Console(quiet=True))


def read_records(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a run's rounds, starting with round 0."""
    lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def cost(records: list[dict[str, Any]]) -> tuple[float, ...]:
    """Return the number of counted replies, and the megabytes uploaded and downloaded by the clients."""
    uploads = sum(len(r.get("active", [])) for r in records)
    return (uploads, *(sum(r.get(key, 0) for r in records) / 1e6 for key in ("bytes_up", "bytes_down")))


def main() -> None:
    """Run the experiment named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument(
        "--reach", type=float, metavar="ACCURACY", help="report the first round with this accuracy, 0..1"
    )
    arguments = parser.parse_args()
    experiment = tomllib.loads(arguments.experiment.read_text())
    for change in arguments.set:
        experiment |= tomllib.loads(change)
    varied = [key for key in experiment["vary"] if key != "seed"]
    rows: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    costs: dict[tuple[Any, ...], list[tuple[float, ...]]] = defaultdict(list)
    reached: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for values in combinations(experiment):
        summary = run(values, str(arguments.experiment))
        records = read_records(summary)
        evaluated = [(r["round"], r["accuracy"]) for r in records if "accuracy" in r]
        last = [accuracy for _, accuracy in evaluated][-10:]
        row = tuple(values[key] for key in varied)
        if arguments.reach is not None:
            rounds = (str(t) for t, accuracy in evaluated if accuracy >= arguments.reach)
            reached[row].append(next(rounds, "never"))
        costs[row].append(cost(records))
        rows[row].append((summary["final"]["accuracy"], statistics.mean(last)))
        print(f"# {row} seed {values.get('seed', 0)}: {summary['final']['accuracy']:.4f}", file=sys.stderr)
    header = [*varied, "final accuracy %", "mean of the last 10 evaluations %"]
    header += ["uploads", "MB up", "MB down"]
    if arguments.reach is not None:
        header.append(f"rounds to {arguments.reach:.0%}")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row, results in rows.items():
        cells = [_mean_and_sd([100 * value for value in column]) for column in zip(*results, strict=True)]
        uploads, *megabytes = (statistics.mean(column) for column in zip(*costs[row], strict=True))
        cells += [f"{uploads:.0f}", *(f"{size:.2f}" for size in megabytes)]
        cells += [", ".join(reached[row])] if row in reached else []
        print("| " + " | ".join([*map(str, row), *cells]) + " |")


def _mean_and_sd(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


if __name__ == "__main__":
    main()
