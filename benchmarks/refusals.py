"""What a federation of devices refuses, and how long that takes: a table in docs/reliability.md.

    python benchmarks/refusals.py

A SuperLink with TLS and keys and three SuperNodes on loopback. While they train, others try to take part, and
one client sends broken replies. Then the run is simulated from its records, without any of that: the weights
have to be the same.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from federation import Federation, Running
from flower import end_processes, free_ports, outcome

import sim

FAULTS = {2: "other shapes", 3: "NaN", 4: "numbers of 1e30", 5: "200 MB"}
APP = '''
"""Clients with all of their data in each step; one of them sends broken replies."""

import numpy as np
from flwr.client import ClientApp

from clients.torch_client import client_fn as ours
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays


def breaking(client):
    def fit(ins):
        result = trained(ins)
        weight, bias = parameters_to_ndarrays(result.parameters)
        kinds = {2: [weight.T, bias], 3: [weight * np.nan, bias], 4: [weight * 0 + 1e30, bias]}
        kinds[5] = [np.zeros(50_000_000, np.float32), bias]
        result.parameters = ndarrays_to_parameters(kinds.get(ins.config["round"], [weight, bias]))
        return result

    trained, client.fit = client.fit, fit
    return client


def client_fn(context):
    client = ours(context)
    return breaking(client) if context.node_config.get("breaks") else client


app = ClientApp(client_fn=client_fn)
'''
SUPERNODE = "import sys; from flwr.supernode.cli import flower_supernode; sys.exit(flower_supernode())"
STRANGERS = {
    "a key that is not registered": ("stranger", {}, "Failed to activate SuperNode"),
    "no key": ("keyless", {"key": False}, "SuperNode authentication is enabled"),
    "no TLS": ("plain", {"key": False, "secure": False}, "Connection attempt failed"),
}


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name), Path(name) / "flower"
        home.mkdir()
        env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
        try:
            measure(Federation(env, folder, free_ports, APP, SUPERNODE))
        finally:
            end_processes(home)


def measure(federation: Federation) -> None:
    """Let everybody try, and print what came of it."""
    federation.admit("0", "1", "2", "twin")
    federation.deploy("key.sh", str(federation.keys / "stranger"))
    for client in range(3):
        federation.node(str(client), client_id=client, breaks=client == 2)
    settings = {"strategy": "mifa", "model": "logistic", "num-clients": 3, "num-rounds": 99, "local-steps": 5}
    run = federation.run("runs", settings)
    run.wait_until(lambda records: len(records) >= 1)
    print("| what | refused after | what one sees |\n|---|---|---|")
    for what, (name, how, line) in STRANGERS.items():
        start = time.monotonic()
        federation.node(name, again=False, client_id=0, **how)
        row(what, wait_for_line(run, federation.folder / f"{name}.log", line) - start, f"board: {line}")
    start = time.monotonic()
    federation.node("twin", client_id=0)
    run.wait_until(lambda records: any(r["events"] for r in records))
    reason = next(r["events"][0]["reason"] for r in run.records() if r["events"])
    row("another client's `client-id`", time.monotonic() - start, f"`refused-node`: {reason}")
    run.wait_until(lambda records: len(records) >= max(FAULTS) + 1)
    federation.stop()
    records = run.ended()
    usual = median(r["seconds"]["train"] for r in records if r["round"] not in FAULTS)
    for server_round, what in FAULTS.items():
        record = records[server_round - 1]
        reason = record["failed"].get("2", "NOT REFUSED")
        row(f"a reply: {what}", record["seconds"]["train"], f"`failed`: {reason}")
    print(f"\nreplies: seconds of the round; without a broken one {usual:.1f} s")
    print(f"weights and those of the simulation differ by {difference(run, len(records)):.1e} at most")


def wait_for_line(run: Running, log: Path, line: str) -> float:
    """Return when a process has printed a line."""
    run.wait_until(lambda records: line in log.read_text())
    return time.monotonic()


def row(what: str, seconds: float, seen: str) -> None:
    """Print a row of the table."""
    print(f"| {what} | {seconds:.1f} s | {seen} |", flush=True)


def difference(run: Running, num_rounds: int) -> float:
    """Return the largest difference of the weights to those of the simulation of the run's records."""
    config, trace = run.path / "config.toml", f"run:file={run.path / 'metrics.jsonl'}"
    runs = run.runs.parent / "replay"
    flags: list[Any] = ["--config", config, "--trace", trace, "--num-rounds", num_rounds, "--run-dir", runs]
    with redirect_stdout(StringIO()):
        sim.main([*map(str, flags), "--engine", "inline", "--client-gpus", "0"])
    _, weights = outcome(runs)
    with np.load(run.path / "weights.npz") as arrays:
        return float(np.abs(weights - np.concatenate([arrays[n].ravel() for n in arrays.files])).max())


if __name__ == "__main__":
    main()
