"""How many devices one SuperLink serves: many nodes that do nearly no work, against a real `flwr run`.

    python benchmarks/many_nodes.py [--nodes 10,100] [--rounds 5] [--poll 3] [--patient] [--database] [--tls]
    python benchmarks/many_nodes.py --app DIR --client MODULE:APP --settings "KEY=VALUE ..."

The nodes (benchmarks/fleet.py) share one process; they, the SuperLink and the ServerApp share this machine.
The task is logistic regression on the digits, 5 steps. With `--app` it is another Flower app, whose settings
have to say how many nodes it waits for (`{nodes}`).

- identify: seconds from the first message of any kind to the first task
- round: mean seconds from the first task of a round to the first of the next, the first round left out
- asking, answering: of these, until the last node has its task, and from then until the last reply is sent
- replies: to tasks, sent by the nodes, and how many of them counted, where the run folder tells
- requests: to the SuperLink, of nodes, by client and round, of which `objects` fetch or bring an object
- task, reply: the objects of a message
- CPU seconds, and the peak of the memory in MiB, of the SuperLink and of the ServerApp
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from superlink import ManyNodes, add_options

OURS = "num-clients={nodes} num-rounds={rounds} model='logistic' local-steps=5 report=false run-dir='{runs}'"
OURS += " connect-timeout=1800.0 round-deadline=1800.0 evaluate-every={rounds}"


def measure(options: argparse.Namespace, nodes: int) -> dict[str, Any]:
    """Run one federation; return its numbers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        there = ManyNodes(options, Path(name), stack)
        there.superlink()
        there.fleet(nodes, *(["--patient"] if options.patient else []))
        settings = options.settings.format(nodes=nodes, rounds=options.rounds, runs=Path(name) / "runs")
        begin = time.time()
        there.run(settings).wait(7200)
        wall = time.time() - begin
        numbers = _numbers(there.told(), nodes, options.rounds)
        if not numbers["rounds"]:
            log = (Path(name) / "run.log").read_text()
            raise RuntimeError(f"{nodes} nodes: no round in {wall:.0f} s\n{log[-3000:]}")
        records = there.records()
        counted = None if records is None else sum(len(record["active"]) for record in records)
        state = there.folder / "superlink.db"
        size = state.stat().st_size / 2**20 if state.exists() else None
    memory = {role: max(seen, default=0.0) for role, seen in there.usage.memory.items()}
    used = {"cpu": there.usage.seconds(), "memory": memory, "database": size}
    return {"nodes": nodes, "wall": wall, "counted": counted, **used, **numbers}


def _numbers(told: dict[str, Any], nodes: int, rounds: int) -> dict[str, Any]:
    """Return what the nodes have seen, by round."""
    times = told["times"]
    tasks = sorted(of for name, of in times.items() if name.startswith("train"))
    gaps = [after[0] - before[0] for before, after in pairwise(tasks)][1:]
    later = tasks[1:-1]
    requests = told["requests"]
    objects = requests.get("pull-object", 0) + requests.get("push-object", 0)
    return {
        "rounds": len(tasks),
        "identify": tasks[0][0] - min(of[0] for of in times.values()) if tasks else None,
        "round": sum(gaps) / len(gaps) if gaps else None,
        "asking": sum(last - first for first, last, _ in later) / len(later) if later else None,
        "answering": sum(replied - last for _, last, replied in later) / len(later) if later else None,
        "replies": told["replied"].get("train", 0),
        "requests": sum(requests.values()) / nodes / max(len(tasks), 1),
        "object_requests": objects / nodes / max(len(tasks), 1),
        "by_kind": requests,
        "objects": told["objects"],
        "bytes_of_app": told["bytes_of_app"],
    }


COLUMNS = (
    *("nodes", "rounds", "identify s", "round s", "asking", "answering", "replies", "counted", "requests"),
    *("objects", "task", "reply", "SuperLink CPU s", "MiB", "ServerApp CPU s", "MiB", "wall s"),
)


def row(r: dict[str, Any]) -> str:
    """Return a line of the table."""
    cells = [r[key] for key in ("nodes", "rounds", "identify", "round", "asking", "answering", "replies")]
    cells += [r[key] for key in ("counted", "requests", "object_requests")]
    cells += [r["objects"].get(kind) for kind in ("task", "reply")]
    for role in ("SuperLink", "ServerApp"):
        cells += [r["cpu"][role], r["memory"][role]]
    shown = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in [*cells, r["wall"]]]
    return f"| {' | '.join(shown)} |"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="How many devices one SuperLink serves.")
    parser.add_argument("--nodes", default="10,100", help="numbers of nodes (10,100)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a run (5)")
    parser.add_argument("--patient", action="store_true", help="nodes as clients.device, not Flower's own")
    add_options(parser)
    parser.add_argument("--settings", default=OURS, help="its run config")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    options = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    results = []
    for nodes in map(int, options.nodes.split(",")):
        results.append(measure(options, nodes))
        print(row(results[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
