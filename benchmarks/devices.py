"""What a round costs besides its work on devices: real SuperNodes on this machine.

    python benchmarks/devices.py [--nodes 3,5] [--rounds 8] [--clients numpy,torch] [--run-config SETTINGS]

For each kind of client and number of nodes, a SuperLink, the nodes and one run. Of the modes, `plain` is
Flower's `flower-supernode` as it is, `short` is `python -m clients.device` (shorter waits), and `resident`
the same with `--resident`. The task is by default logistic regression on the digits, 5 steps: nearly no work.

- round: mean seconds of a round, the first one left out
- work: mean over rounds of the longest time that a client spent on its local steps
- overhead: their difference
- memory: of one node, in MiB: its SuperNode, its SuperExec, `python -m clients.device` if there is one (with
  `--resident` it is the resident client), and the largest process for a message. `rss` counts shared pages in
  every process, `pss` by their share.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower import free_ports, wait_for_port

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MODES = {"plain": (), "short": (), "resident": ("--resident",)}
PROGRAMS = {"clients.device.supernode": "SuperNode", "flower-supernode": "SuperNode"}
PROGRAMS |= {"flower-superexec": "SuperExec", "flwr-clientapp": "client", "clients.device": "device"}


class Memory(threading.Thread):
    """Watches the memory of all processes in a Flower home: the largest by program, in MiB."""

    def __init__(self, home: str) -> None:
        super().__init__(daemon=True)
        self.home, self.ended = f"FLWR_HOME={home}".encode(), threading.Event()
        self.peak: dict[str, dict[str, float]] = {}

    def run(self) -> None:
        """Look twice a second."""
        device_of: dict[str, bool] = {}
        while not self.ended.wait(0.5):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self.home not in (process / "environ").read_bytes().split(b"\0"):
                        continue
                    self._look(process, device_of)

    def _look(self, process: Path, device_of: dict[str, bool]) -> None:
        words = (process / "cmdline").read_bytes().decode().split("\0")
        program = next(
            (role for name, role in PROGRAMS.items() if any(w.endswith(name) for w in words)), None
        )
        if program is None:
            return
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        if program == "device" and not device_of.setdefault(process.name, parent not in device_of):
            program = "client"  # forked by the resident client
        text = (process / "smaps_rollup").read_text()
        for kind in ("Rss", "Pss"):
            found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.M)
            if found:
                best = self.peak.setdefault(program, {})
                best[kind] = max(best.get(kind, 0.0), int(found[1]) / 1024)


def measure(mode: str, client: str, nodes: int, rounds: int, config: str, data: str) -> dict[str, Any]:
    """Run one federation; return its numbers."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (home := folder / "home").mkdir()
        (logs := folder / "logs").mkdir()
        port, *ports = free_ports(1 + nodes)
        connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{port}"\n'
        (home / "config.toml").write_text(connection + "insecure = true\n")
        env = {**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        log = stack.enter_context((folder / "flower.log").open("wb"))
        address = f"127.0.0.1:{port}"
        link = ["--insecure", "--host", "127.0.0.1", "--port", str(port)]
        commands = [[str(BIN / "flower-superlink"), *link]]
        for k in range(nodes):
            if mode == "plain":
                told = f'client-id={k} record-trace="{logs}"' + (" numpy=true" if client == "numpy" else "")
                told += f' data="{data}"' if data else ""
                options = ["--insecure", "--superlink", address, "--port", str(ports[k])]
                commands.append([str(BIN / "flower-supernode"), *options, "--node-config", told])
            else:
                options = ["--superlink", address, "--client-id", str(k), "--record-trace", str(logs)]
                options += MODES[mode] + (("--numpy",) if client == "numpy" else ())
                options += ["--data", data] if data else []
                commands.append([sys.executable, "-m", "clients.device", *options])
        for command in commands:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
            stack.callback(_end, process)
        memory = Memory(str(home))
        memory.start()
        settings = f"num-clients={nodes} num-rounds={rounds} local-steps=5 report=false {config}"
        settings += f" run-dir='{folder / 'runs'}' connect-timeout=240.0"
        run = [str(BIN / "flwr"), "run", str(ROOT), "lab", "--stream", "--run-config", settings]
        wait_for_port(port)
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=1800)
        memory.ended.set()
        memory.join()
        files = list(folder.glob("runs/*/metrics.jsonl"))
        records = [json.loads(line) for line in files[0].read_text().splitlines()][1:] if files else []
        if len(records) != rounds:
            raise RuntimeError(f"{mode}, {client}, {nodes} nodes: {done.stdout[-2000:]}")
        seconds = [sum(record["seconds"].values()) for record in records][1:]
        work = _work(logs)[1:]
    mean, worked = sum(seconds) / len(seconds), sum(work) / len(work)
    numbers = {"round": mean, "work": worked, "overhead": mean - worked}
    replies = sum(len(record["active"]) for record in records)
    return {
        "mode": mode,
        "client": client,
        "nodes": nodes,
        "replies": replies,
        **numbers,
        "memory": memory.peak,
    }


def _work(logs: Path) -> list[float]:
    """Return for each round the longest time of a client's steps."""
    texts = [file.read_text() for file in logs.glob("*.csv")]
    times = [[float(found) for found in re.findall(r"steps in ([\d.]+) s", text)] for text in texts]
    return [max(of_round) for of_round in zip(*times, strict=False)]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| client | nodes | mode | s a round | work | overhead | SuperNode | SuperExec | resident | client |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        sizes = [r["memory"].get(program) for program in ("SuperNode", "SuperExec", "device", "client")]
        shown = " | ".join(
            "-" if size is None else f"{size['Rss']:.0f} ({size['Pss']:.0f})" for size in sizes
        )
        times = " | ".join(f"{r[key]:.2f}" for key in ("round", "work", "overhead"))
        lines.append(f"| {r['client']} | {r['nodes']} | {r['mode']} | {times} | {shown} |")
    return "\n".join(lines)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="What a round costs besides its work on devices.")
    parser.add_argument("--nodes", default="3,5", help="numbers of nodes (3,5)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of a run (8)")
    parser.add_argument("--clients", default="numpy,torch", help="kinds of client (numpy,torch)")
    parser.add_argument("--modes", default=",".join(MODES), help=f"modes ({','.join(MODES)})")
    text = "task and model of the runs (model='logistic')"
    parser.add_argument("--run-config", default="model='logistic'", metavar="SETTINGS", help=text)
    parser.add_argument(
        "--data", default="", metavar="FILE", help="data of each node (its part of the run's)"
    )
    parser.add_argument("--json", type=Path, help="file for all numbers")
    options = parser.parse_args()
    results = []
    for client in options.clients.split(","):
        for nodes in map(int, options.nodes.split(",")):
            for mode in options.modes.split(","):
                load = os.getloadavg()[0]
                asked = (options.rounds, options.run_config, options.data)
                results.append(measure(mode, client, nodes, *asked) | {"load": load})
                print(table(results[-1:]).splitlines()[-1], f"load {load:.1f}", file=sys.stderr, flush=True)
    print("Memory: MiB, rss (pss).\n\n" + table(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
