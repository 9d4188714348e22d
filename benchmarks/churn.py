"""Devices that come and go: rounds that end in time, replies that count once, memory that stays flat.

    python benchmarks/churn.py [--nodes 20] [--rounds 200] [--poll 0.5] [--deadline 5]

In each round 10 % of the nodes leave and others join, 1 % hang, 1 % send rubbish and 5 % are slow
(`Faults` in benchmarks/fleet.py); a quarter more clients than nodes exist. The method is FedBuff, which takes
late replies. In benchmarks/chaos.py the SuperLink and whole machines fail as well.

- longest: seconds of the longest round, of which the deadline and 5 seconds of grace may pass
- usable: replies sent by nodes that were no rubbish; counted: those in the records; twice, unknown: of these,
  counted more than once, or never sent
- memory: MiB of ServerApp and SuperLink after a fifth of the run and at its end
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from superlink import ManyNodes, add_options

SETTINGS = "num-clients={clients} min-nodes={nodes} num-rounds={rounds} strategy='fedbuff' model='logistic'"
SETTINGS += " local-steps=5 report=false run-dir='{runs}' round-deadline={deadline} connect-timeout=300.0"
SETTINGS += " evaluate-every={rounds} checkpoint-every=5 max-absence=20"
COLUMNS = ("nodes", "rounds", "round s", "longest", "usable", "counted", "late", "twice", "unknown", "failed")
COLUMNS += ("left", "hung", "rubbish", "slow", "ServerApp MiB", "at the end", "SuperLink MiB", "at the end")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run one federation; return its numbers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        there = ManyNodes(options, Path(name), stack)
        there.superlink()
        away = options.nodes // 4
        flags = ["--away", str(away), "--faults", "1", "--patience", str(3 * options.deadline)]
        there.fleet(options.nodes, *flags)
        told = {"clients": options.nodes + away, "nodes": options.nodes, "rounds": options.rounds}
        settings = SETTINGS.format(**told, runs=Path(name) / "runs", deadline=float(options.deadline))
        there.run(settings).wait(7200)
        log = (Path(name) / "run.log").read_text()
        records = there.records() or []
        fleet = there.told()
    if len(records) < options.rounds:
        raise RuntimeError(f"{len(records)} rounds of {options.rounds}\n{log[-3000:]}")
    return numbers(records, fleet) | {"nodes": options.nodes, "memory": there.usage.memory}


def numbers(records: list[dict[str, Any]], fleet: dict[str, Any]) -> dict[str, Any]:
    """Hold what the records say against what the nodes have sent."""
    counted: list[tuple[int, int]] = []  # client and round of the task
    for record in records:
        tasks = {entry["client"]: entry["task"] for entry in record.get("late", ())}
        counted += [(client, tasks.get(client, record["round"])) for client in record["active"]]
    usable = {(client, int(group)) for client, group in fleet["usable"]}
    seconds = [sum(record["seconds"].values()) for record in records]
    return {
        "rounds": len(records),
        "round": sum(seconds) / len(seconds),
        "longest": max(seconds),
        "usable": len(usable),
        "counted": len(counted),
        "late": sum(len(record.get("late", ())) for record in records),
        "twice": len(counted) - len({*counted}),
        "unknown": len({*counted} - usable),
        "failed": sum(len(record["failed"]) for record in records),
        "faults": fleet["faults"],
        "errors": fleet["errors"],
    }


def row(r: dict[str, Any]) -> str:
    """Return a line of the table."""
    keys = ("nodes", "rounds", "round", "longest", "usable", "counted", "late", "twice", "unknown", "failed")
    cells = [r[key] for key in keys]
    cells += [r["faults"].get(fault, 0) for fault in ("leaves", "hangs", "rubbish", "slow")]
    for role in ("ServerApp", "SuperLink"):
        seen = r["memory"][role]
        cells += [seen[len(seen) // 5], seen[-1]]
    return f"| {' | '.join(f'{cell:.1f}' if isinstance(cell, float) else str(cell) for cell in cells)} |"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Many devices that come and go.")
    parser.add_argument("--nodes", type=int, default=20, help="that are there at a time (20)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of the run (200)")
    parser.add_argument("--deadline", type=int, default=5, help="seconds of a round, before the grace (5)")
    add_options(parser)
    parser.set_defaults(poll=0.5)
    parser.add_argument("--json", type=Path, help="file for all numbers")
    options = parser.parse_args()
    result = measure(options)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n{row(result)}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
