"""A federation of real SuperNodes with TLS and keys, which a test starts, kills and makes hang."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower import BIN, ROOT, copy_app, flwr_run, wait_for_port

DEPLOY = ROOT / "deploy"

# A SuperNode that is seen to be dead after 16 to 20 seconds, not after a minute, that looks for messages
# every half second, not every three, and for its SuperLink every two, not twenty.
SUPERNODE = """
import sys, time
from flwr.supercore import heartbeat
from flwr.supercore.retry import http_retry
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode

class Impatient:
    def __getattr__(self, name):
        return getattr(time, name)
    def sleep(self, seconds):
        time.sleep(min(seconds, 0.5))

heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
http_retry.MAX_RETRY_DELAY = 2
start_client_internal.time = Impatient()
sys.exit(flower_supernode())
"""
# Imports what clients need, and forks one for every message that a SuperNode gets.
RESIDENT = """
import sys
from pathlib import Path
from clients.device.resident import Resident

with Resident(Path(sys.argv[1]), ["clients.numpy_client", "clients.torch_client"]) as resident:
    resident.prepare()
    while True:
        resident.answer()
        resident.reap()
"""
# As under systemd: a key is refused while its dead node still counts as online.
AGAIN = 'until "$@"; do sleep 4; done'

# A client app whose clients misbehave as their node config says: without PyTorch, but for client 0 under
# other methods than scheme C, which is that of clients/app.py.
APP = '''
"""Clients that are slow, hang or send NaN in a round, or lose one reply."""

import time
from pathlib import Path

import numpy as np
from flwr.client import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

from clients import numpy_client


class Misbehaving(numpy_client.NumPyTrainer):
    def fit(self, ins):
        now = ins.config["round"]
        (Path(self.told["marks"]) / f"{self.node.client}-{now}").touch()
        while now == self.told.get("hang-in"):
            time.sleep(1)
        self.pause = self.told["slow"] if now == self.told.get("slow-in") else 0
        result = super().fit(ins)
        if now == self.told.get("nan-in"):
            arrays = parameters_to_ndarrays(result.parameters)
            result.parameters = ndarrays_to_parameters([np.nan * array for array in arrays])
        return result

    def _gradients(self, *step):
        for gradient in super()._gradients(*step):
            time.sleep(self.pause)
            yield gradient


def losing(client, node):
    def fit(ins):
        result = trained(ins)
        lost = Path(node["marks"]) / "lost"
        if ins.config["round"] >= node.get("lose-from", float("inf")) and not lost.exists():
            lost.touch()
            raise ConnectionError("reply lost")
        return result

    trained, client.fit = client.fit, fit
    return client


def client_fn(context):
    node = context.node_config
    if context.run_config["strategy"] == "scheme-c":
        client = numpy_client.client_fn(context)
        client.__class__, client.told = Misbehaving, node
        return client
    if node["client-id"]:
        return numpy_client.client_fn(context)
    from clients.app import client_fn  # PyTorch, which takes most of a message's time to import

    return losing(client_fn(context), node)


app = ClientApp(client_fn=client_fn)
'''


class Federation:
    """A SuperLink with TLS, SuperNodes with keys, and runs, whose records a test reads at once.

    `app` is the module of the ClientApp, `supernode` the program of a SuperNode.
    """

    def __init__(
        self,
        env: dict[str, str],
        folder: Path,
        ports: Callable[[int], list[int]],
        app: str = APP,
        supernode: str = SUPERNODE,
    ) -> None:
        self.env, self.folder, self.ports = env | {"BIN": str(BIN)}, folder, ports
        self.app, self.supernode = app, supernode
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (self.port,) = ports(1)
        self.env |= {"CERTIFICATES": str(folder / "certificates")}
        self.ca = folder / "certificates" / "ca.crt"
        self.marks, self.keys = folder / "marks", folder / "keys"
        for made in (self.marks, self.keys):
            made.mkdir()
        self.deploy("certificates.sh", "127.0.0.1")
        (Path(env["FLWR_HOME"]) / "config.toml").write_text(
            '[superlink]\ndefault = "lab"\n\n[superlink.lab]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.ca}"\n'
        )
        self.superlink()

    def deploy(self, script: str, *arguments: str) -> str:
        """Call a script of deploy/; return what it printed."""
        command = [str(DEPLOY / script), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, command: list[str], **env: str) -> None:
        """Start a process in a group of its own, and log what it prints."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env | env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def superlink(self) -> None:
        """Start the SuperLink, or start it again with what it has saved."""
        settings = {
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "DATABASE": str(self.folder / "superlink.db"),
        }
        self.start("superlink", [str(DEPLOY / "superlink.sh")], **settings)
        wait_for_port(self.port)

    def admit(self, *names: str) -> None:
        """Make and register the keys of SuperNodes."""
        for name in names:
            self.deploy("key.sh", str(self.keys / name))
        self.deploy("register.sh", *(f"{name}={self.keys / name}.pub" for name in names))

    def node(
        self, name: str, *, secure: bool = True, key: bool = True, again: bool = True, **config: Any
    ) -> None:
        """Start a SuperNode, with the key of its name; `again` whenever it ends."""
        (port,) = self.ports(1)
        told = " ".join(f"{k.replace('_', '-')}={json.dumps(value)}" for k, value in config.items())
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(port), "--node-config", told]
        options += ["--root-certificates", str(self.ca)] if secure else ["--insecure"]
        options += ["--auth-supernode-private-key", str(self.keys / name)] if key else []
        command = [sys.executable, "-c", self.supernode, *options]
        self.start(name, ["sh", "-c", AGAIN, "sh", *command] if again else command)

    def resident(self) -> None:
        """Let all SuperNodes share one resident client, as a message's own imports take seconds."""
        folder = self.folder / "resident"
        folder.mkdir()
        self.start("resident", [sys.executable, "-c", RESIDENT, str(folder)], PYTHONPATH=str(ROOT))
        self.env["PATH"] = os.pathsep.join([str(folder), self.env["PATH"]])

    def kill(self, name: str) -> None:
        """End a process and what it has started, as a power cut does."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def run(self, name: str, settings: dict[str, Any]) -> "Running":
        """Start a run with misbehaving clients; its run folder is in the folder of this name."""
        app = self.folder / "app"
        if not app.exists():
            copy_app(app)
            project = (ROOT / "pyproject.toml").read_text().replace("clients.app:app", "misbehaving:app")
            (app / "pyproject.toml").write_text(project)
            (app / "misbehaving.py").write_text(self.app)
        return Running(self.env, app, self.folder / name, settings)

    def statuses(self) -> dict[str, str]:
        """Return the status of each run by its number, the newest first."""
        command = [str(BIN / "flwr"), "ls", "lab", "--format", "json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return {run["run-id"]: run["status"] for run in json.loads(done.stdout)["runs"]}

    def stop(self) -> None:
        """Stop the newest run, as a user does."""
        newest = next(iter(self.statuses()))
        subprocess.run([str(BIN / "flwr"), "stop", newest, "lab"], env=self.env, check=True)


class Running:
    """A run in the background."""

    def __init__(self, env: dict[str, str], app: Path, runs: Path, settings: dict[str, Any]) -> None:
        self.runs, self.output = runs, ""

        def call() -> None:
            self.output = flwr_run(env, {**settings, "run-dir": str(runs)}, "lab", app=app, patience=1000)

        self.thread = threading.Thread(target=call)
        self.thread.start()

    @property
    def path(self) -> Path:
        """The run folder."""
        (path,) = self.runs.iterdir()
        return path

    def records(self) -> list[dict[str, Any]]:
        """Return the records of the rounds so far."""
        files = list(self.runs.glob("*/metrics.jsonl"))
        lines = files[0].read_text().splitlines(keepends=True) if files else []
        return [json.loads(line) for line in lines[1:] if line.endswith("\n")]

    def wait_until(self, happened: Callable[[list[dict[str, Any]]], Any]) -> None:
        """Wait until the records say that something has happened."""
        while not happened(self.records()):
            assert self.thread.is_alive(), self.told()
            time.sleep(0.2)

    def wait_for_file(self, path: Path) -> None:
        """Wait for a file while the run goes on."""
        self.wait_until(lambda records: path.exists())

    def told(self) -> str:
        """What `flwr run` has printed, as one line."""
        return " ".join(self.output.split())

    def finished(self) -> list[dict[str, Any]]:
        """Wait for the end of `flwr run`; return the records of the rounds."""
        self.thread.join()
        return self.records()

    def ended(self) -> list[dict[str, Any]]:
        """Wait until the run folder is complete; return the records of the rounds."""
        deadline = time.monotonic() + 600
        while not (self.path / "summary.json").exists():
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.2)
        return self.records()
