"""A federation of real SuperNodes on this machine, which a test starts, kills and makes hang."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower import BIN, ROOT, copy_app, flwr_run, wait_for_port

# A SuperNode that is seen to be dead after 16 to 20 seconds, not after a minute.
SUPERNODE = """
import sys
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode
heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
sys.exit(flower_supernode())
"""

# A client app whose clients misbehave as their node config says.
APP = '''
"""Clients that are slow in a round, hang from a round on, or are those of clients/app.py."""

import time

from flwr.client import ClientApp

from clients import numpy_client


class Misbehaving(numpy_client.NumPyTrainer):
    hang_from = slow_in = slow = 0

    def _batches(self, config, steps):
        while self.hang_from and config.round >= self.hang_from:
            time.sleep(1)
        for batch in super()._batches(config, steps):
            time.sleep(self.slow if config.round == self.slow_in else 0)
            yield batch


def client_fn(context):
    node = context.node_config
    if "state-dir" in node:
        from clients.app import client_fn as ours

        return ours(context)
    made = numpy_client.client_fn(context)
    made.__class__ = Misbehaving
    made.hang_from, made.slow_in = int(node.get("hang-from", 0)), int(node.get("slow-in", 0))
    made.slow = float(node.get("slow", 0))
    return made


app = ClientApp(client_fn=client_fn)
'''


class Federation:
    """A SuperLink, its SuperNodes, and one run, whose records a test reads as they are written."""

    def __init__(self, env: dict[str, str], folder: Path, ports: Callable[[int], list[int]]) -> None:
        self.env, self.folder, self.ports = env, folder, ports
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        (port,) = ports(1)
        self.address = f"127.0.0.1:{port}"
        connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{self.address}"\n'
        (Path(env["FLWR_HOME"]) / "config.toml").write_text(connection + "insecure = true\n")
        self.log = (folder / "flower.log").open("wb")
        self.start([str(BIN / "flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)])
        wait_for_port(port)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=self.log, stderr=self.log)

    def node(self, name: str, **config: Any) -> None:
        """Start a SuperNode."""
        (port,) = self.ports(1)
        told = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
        options = ["--insecure", "--superlink", self.address, "--port", str(port), "--node-config", told]
        self.nodes[name] = self.start([sys.executable, "-c", SUPERNODE, *options])

    def kill(self, name: str) -> None:
        """End a SuperNode as a power cut does."""
        self.nodes[name].send_signal(signal.SIGKILL)
        self.nodes[name].wait()

    def run(self, name: str, settings: dict[str, Any]) -> "Running":
        """Start a run with misbehaving clients; its run folder is of this name."""
        app = self.folder / "app"
        if not app.exists():
            copy_app(app)
            project = (ROOT / "pyproject.toml").read_text().replace("clients.app:app", "misbehaving:app")
            (app / "pyproject.toml").write_text(project)
            (app / "misbehaving.py").write_text(APP)
        return Running(self.env, app, self.folder / name, settings)

    def status(self) -> list[str]:
        """Return the status of each run."""
        command = [str(BIN / "flwr"), "ls", "lab", "--format", "json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return [run["status"] for run in json.loads(done.stdout)["runs"]]


class Running:
    """A run in the background."""

    def __init__(self, env: dict[str, str], app: Path, runs: Path, settings: dict[str, Any]) -> None:
        self.runs, self.output = runs, ""

        def call() -> None:
            self.output = flwr_run(env, {**settings, "run-dir": str(runs)}, "lab", app=app, patience=550)

        self.thread = threading.Thread(target=call)
        self.thread.start()

    def records(self) -> list[dict[str, Any]]:
        files = list(self.runs.glob("*/metrics.jsonl"))
        return [json.loads(line) for line in files[0].read_text().splitlines()] if files else []

    def wait_for(self, server_round: int) -> None:
        """Wait until a round is over, or the run."""
        while self.thread.is_alive() and len(self.records()) <= server_round:
            time.sleep(0.2)

    def told(self) -> str:
        """What `flwr run` has printed, as one line."""
        return " ".join(self.output.split())

    def finished(self) -> list[dict[str, Any]]:
        """Wait for the end; return the records of the rounds."""
        self.thread.join()
        return self.records()[1:]
