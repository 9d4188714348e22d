"""How many devices one SuperLink serves: many nodes that do nearly no work, against a real `flwr run`.

    python benchmarks/many_nodes.py [--nodes 10,100] [--rounds 5] [--poll 3] [--patient] [--database] [--tls]
    python benchmarks/many_nodes.py --app DIR --client MODULE:APP --settings "KEY=VALUE ..."

The nodes (benchmarks/fleet.py) share one process; they, the SuperLink and the ServerApp share this machine.
The task is logistic regression on the digits, 5 steps. With `--app` it is another Flower app, whose settings
have to say how many nodes it waits for (`{nodes}`).

- identify: seconds from the first message of any kind to the first task
- round: mean seconds from the first task of a round to the first of the next, the first round left out
- replies: to tasks, sent by the nodes, and how many of them counted, where the run folder tells
- requests: to the SuperLink, of nodes, by client and round, of which `objects` fetch or bring an object
- task, reply: the objects of a message
- CPU seconds, and the peak of the memory in MiB, of the SuperLink and of the ServerApp
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower import BIN, end_processes, free_ports, wait_for_port

ROOT = Path(__file__).parents[1]
OURS = "num-clients={nodes} num-rounds={rounds} model='logistic' local-steps=5 report=false run-dir='{runs}'"
OURS += " connect-timeout=1800.0 round-deadline=1800.0 evaluate-every={rounds}"
ROLES = {"flower-superlink": "SuperLink", "flwr-serverapp": "ServerApp"}
TICKS = os.sysconf("SC_CLK_TCK")


class Usage(threading.Thread):
    """Watches the processes of a Flower home: CPU seconds, and the peak of the memory in MiB, by role."""

    def __init__(self, home: str) -> None:
        super().__init__(daemon=True)
        self.home, self.ended = f"FLWR_HOME={home}".encode(), threading.Event()
        self.cpu: dict[str, dict[str, float]] = {role: {} for role in ROLES.values()}
        self.memory = dict.fromkeys(ROLES.values(), 0.0)

    def run(self) -> None:
        """Look once a second."""
        while not self.ended.wait(1.0):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError, IndexError):
                    if self.home in (process / "environ").read_bytes().split(b"\0"):
                        self._look(process)

    def _look(self, process: Path) -> None:
        words = (process / "cmdline").read_bytes().decode().split("\0")[:3]
        role = next((role for name, role in ROLES.items() if any(w.endswith(name) for w in words)), None)
        if role is None:
            return
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        self.cpu[role][process.name] = (int(fields[11]) + int(fields[12])) / TICKS
        resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.memory[role] = max(self.memory[role], resident)


def measure(options: argparse.Namespace, nodes: int) -> dict[str, Any]:
    """Run one federation; return its numbers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (home := folder / "home").mkdir()
        stack.callback(end_processes, home)
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        env = {**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        link, secure, fleet = ["--insecure"], "insecure = true\n", []
        if options.tls:
            subprocess.run(
                [ROOT / "deploy" / "certificates.sh", "127.0.0.1"],
                check=True,
                capture_output=True,
                env=env | {"CERTIFICATES": str(folder / "ca")},
            )
            ca = folder / "ca" / "ca.crt"
            secure, fleet = f'root-certificates = "{ca}"\n', ["--ca", str(ca)]
            link = ["--ssl-ca-certfile", str(ca), "--ssl-certfile", str(folder / "ca" / "server.pem")]
            link += ["--ssl-keyfile", str(folder / "ca" / "server.key")]
        fleet += ["--patient"] if options.patient else []
        connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{address}"\n'
        (home / "config.toml").write_text(connection + secure)
        if options.database:
            link += ["--database", str(folder / "superlink.db")]
        log = stack.enter_context((folder / "flower.log").open("wb"))

        def start(*command: str, **how: Any) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, env=env, cwd=options.app, **({"stderr": log} | how))

        start(str(BIN / "flower-superlink"), *link, "--host", "127.0.0.1", "--port", str(port), stdout=log)
        wait_for_port(port)
        command = [sys.executable, str(ROOT / "benchmarks" / "fleet.py"), address, str(nodes), options.client]
        told = start(*command, "--poll", str(options.poll), *fleet, stdout=subprocess.PIPE)
        usage = Usage(str(home))
        usage.start()
        settings = options.settings.format(nodes=nodes, rounds=options.rounds, runs=folder / "runs")
        run = [str(BIN / "flwr"), "run", ".", "lab", "--stream", "--run-config", settings]
        begin = time.time()
        done = subprocess.run(run, env=env, cwd=options.app, capture_output=True, text=True, timeout=7200)
        wall = time.time() - begin
        usage.ended.set()
        told.send_signal(signal.SIGTERM)
        out, _ = told.communicate(timeout=120)
        numbers = _numbers(json.loads(out), nodes, options.rounds)
        if not numbers["rounds"]:
            raise RuntimeError(f"{nodes} nodes: no round in {wall:.0f} s\n{done.stdout[-3000:]}")
        files = list(folder.glob("runs/*/metrics.jsonl"))
        records = [json.loads(line) for line in files[0].read_text().splitlines()][1:] if files else []
        numbers["counted"] = sum(len(record["active"]) for record in records) if files else None
    cpu = {role: sum(of.values()) for role, of in usage.cpu.items()}
    return {"nodes": nodes, "wall": wall, "cpu": cpu, "memory": usage.memory, **numbers}


def _numbers(told: dict[str, Any], nodes: int, rounds: int) -> dict[str, Any]:
    """Return what the nodes have seen, by round."""
    seen = told["seen"]
    tasks = sorted(time for name, time in seen.items() if name.startswith("train"))
    gaps = [after - before for before, after in pairwise(tasks)][1:]
    requests = told["requests"]
    objects = requests.get("pull-object", 0) + requests.get("push-object", 0)
    return {
        "rounds": len(tasks),
        "identify": tasks[0] - min(seen.values()) if tasks else None,
        "round": sum(gaps) / len(gaps) if gaps else None,
        "replies": told["replied"].get("train", 0),
        "requests": sum(requests.values()) / nodes / max(len(tasks), 1),
        "object_requests": objects / nodes / max(len(tasks), 1),
        "by_kind": requests,
        "objects": told["objects"],
        "bytes_of_app": told["bytes_of_app"],
    }


COLUMNS = (
    *("nodes", "rounds", "identify s", "round s", "replies", "counted", "requests", "objects"),
    *("task", "reply", "SuperLink CPU s", "MiB", "ServerApp CPU s", "MiB", "wall s"),
)


def row(r: dict[str, Any]) -> str:
    """Return a line of the table."""
    cells = [r["nodes"], r["rounds"], r["identify"], r["round"], r["replies"], r["counted"], r["requests"]]
    cells += [r["object_requests"], r["objects"].get("task"), r["objects"].get("reply")]
    for role in ROLES.values():
        cells += [r["cpu"][role], r["memory"][role]]
    shown = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in [*cells, r["wall"]]]
    return f"| {' | '.join(shown)} |"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="How many devices one SuperLink serves.")
    parser.add_argument("--nodes", default="10,100", help="numbers of nodes (10,100)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a run (5)")
    parser.add_argument("--poll", type=float, default=3.0, help="seconds between a node's looks (3)")
    parser.add_argument("--patient", action="store_true", help="nodes as clients.device, not Flower's own")
    parser.add_argument("--database", action="store_true", help="the SuperLink's state in SQLite")
    parser.add_argument("--tls", action="store_true", help="with certificates")
    parser.add_argument("--app", type=Path, default=ROOT, help="folder of the Flower app (this project)")
    parser.add_argument("--client", default="clients.numpy_client:app", help="its ClientApp, MODULE:NAME")
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
