"""The project as a Flower App, run by `flwr run` on a SuperLink of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT, Clock, Job


def run(job: Job, clock: Clock) -> None:
    """Run the job's `settings` for its `rounds`; note the median seconds of a round but the first."""
    settings = {**job["settings"], "run-dir": f"{job['scratch']}/runs", "num-rounds": job["rounds"] + 1}
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": ports[0],
        "FLWR_LOCAL_CONTROL_API_PORT": ports[1],
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    told = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    nodes = f"num-supernodes={settings['num-clients']} client-resources-num-cpus=1"
    command = ["flwr", "run", ".", "local", "--stream", "--run-config", told, "--federation-config", nodes]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    records = [*Path(settings["run-dir"]).glob("*/metrics.jsonl")]
    if not records:
        raise RuntimeError(" ".join((done.stdout + done.stderr).split())[-250:])
    rounds = [json.loads(line) for line in records[0].read_text(encoding="utf-8").splitlines()][2:]
    if len(rounds) != job["rounds"] or any(record["failed"] for record in rounds):
        raise RuntimeError(f"{len(rounds)} rounds, failures {[record['failed'] for record in rounds]}")
    seconds = sorted(sum(record["seconds"].values()) for record in rounds)
    clock.note(seconds=seconds[len(seconds) // 2])
