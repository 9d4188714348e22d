"""A federation of real SuperNodes with TLS and keys, which a test starts, kills and makes hang."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower import BIN, ROOT, command_of_run, copy_app, free_ports, wait_for_port
from flwr.cli.app import app as flwr_command
from typer.testing import CliRunner
from waiting import wait_until

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

# A client app whose clients misbehave: client 0 with PyTorch, the others without. While there is a file hang,
# hang-K or hang-K-ROUND, client K hangs; slow-K has the seconds by which each of its steps takes longer.
APP = '''
"""Clients that are slow, hang or send NaN in a round, or lose one reply."""

import time
from pathlib import Path

import numpy as np
from flwr.client import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

from clients import numpy_client


def obey(node, now):
    marks, client = Path(node["marks"]), node["client-id"]
    (marks / f"{client}-{now}").touch()
    hang = [marks / name for name in ("hang", f"hang-{client}", f"hang-{client}-{now}")]
    while any(file.exists() for file in hang):
        (marks / f"hangs-{client}").touch()
        time.sleep(0.1)


class Misbehaving(numpy_client.NumPyClient):
    def fit(self, ins):
        now = ins.config["round"]
        obey(self.told, now)
        slow = Path(self.told["marks"]) / f"slow-{self.node.client}"
        self.pause = float(slow.read_text()) if slow.exists() else 0
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
        obey(node, ins.config["round"])
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
    if node["client-id"] == 0:
        from clients.app import client_fn  # PyTorch, which takes most of a message's time to import

        return losing(client_fn(context), node)
    client = numpy_client.client_fn(context)
    client.__class__, client.told = Misbehaving, node
    return client


app = ClientApp(client_fn=client_fn)
'''


class Federation:
    """A SuperLink with TLS, SuperNodes with keys, and runs in one folder, which a test reads meanwhile."""

    def __init__(self, env: dict[str, str], folder: Path) -> None:
        self.folder, self.app, self.runs = folder, folder / "app", folder / "runs"
        self.marks, self.keys = folder / "marks", folder / "keys"
        self.ca = folder / "certificates" / "ca.crt"
        self.env = env | {"BIN": str(BIN), "CERTIFICATES": str(self.ca.parent)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (self.port,) = free_ports(1)
        for made in (self.marks, self.keys):
            made.mkdir()
        copy_app(self.app)
        project = (ROOT / "pyproject.toml").read_text().replace("clients.app:app", "misbehaving:app")
        (self.app / "pyproject.toml").write_text(project)
        (self.app / "misbehaving.py").write_text(APP)
        self.deploy("certificates.sh", "127.0.0.1")
        (Path(env["FLWR_HOME"]) / "config.toml").write_text(
            '[superlink]\ndefault = "lab"\n\n[superlink.lab]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.ca}"\n'
        )
        self.superlink()

    def deploy(self, script: str, *arguments: str) -> None:
        """Call a script of deploy/."""
        subprocess.run([DEPLOY / script, *arguments], cwd=self.folder, env=self.env, check=True)

    def start(self, name: str, command: list[str], *, cwd: Path | None = None, **env: str) -> None:
        """Start a process in a group of its own, and log what it prints."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env=self.env | env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def superlink(self) -> None:
        """Start the SuperLink, or start it again with what it has saved."""
        settings = {"HOST": "127.0.0.1", "PORT": str(self.port)}
        settings |= {"DATABASE": str(self.folder / "superlink.db")}
        self.start("superlink", [str(DEPLOY / "superlink.sh")], **settings)
        wait_for_port(self.port)

    def admit(self, *names: str) -> None:
        """Make and register the keys of SuperNodes."""
        for name in names:
            self.deploy("key.sh", str(self.keys / name))
        command = [sys.executable, "-m", "fedtide", "fleet", "register"]
        keys = [f"{name}={self.keys / name}.pub" for name in names]
        subprocess.run([*command, *keys], cwd=ROOT, env=self.env, check=True)

    def node(
        self, name: str, *, secure: bool = True, key: bool = True, again: bool = True, **config: Any
    ) -> None:
        """Start a SuperNode, with the key of its name; `again` whenever it ends."""
        (port,) = free_ports(1)
        told = " ".join(f"{k.replace('_', '-')}={json.dumps(value)}" for k, value in config.items())
        options = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(port), "--node-config", told]
        options += ["--root-certificates", str(self.ca)] if secure else ["--insecure"]
        options += ["--auth-supernode-private-key", str(self.keys / name)] if key else []
        command = [sys.executable, "-c", SUPERNODE, *options]
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

    def run(self, settings: dict[str, Any]) -> None:
        """Start a run with misbehaving clients, or resume it."""
        command = command_of_run(settings | {"run-dir": str(self.runs)}, "lab")
        self.start("run", [str(BIN / command[0]), *command[1:]], cwd=self.app)

    @property
    def path(self) -> Path:
        """The run folder."""
        (path,) = self.runs.glob("*/")
        return path

    def records(self) -> list[dict[str, Any]]:
        """The records of the rounds so far."""
        files = list(self.runs.glob("*/metrics.jsonl"))
        lines = files[0].read_text().splitlines(keepends=True) if files else []
        return [json.loads(line) for line in lines[1:] if line.endswith("\n")]

    def wait_until(self, happened: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
        """Wait until the records of the run say that something has happened; return them."""
        self._wait(lambda: happened(self.records()), self.processes["run"])
        return self.records()

    def ended(self) -> list[dict[str, Any]]:
        """Wait until the run folder is complete; return the records of the rounds."""
        self._wait((self.path / "summary.json").exists)
        return self.records()

    def _wait(self, condition: Callable[[], Any], process: Any = None) -> None:
        """Wait for a condition; where it never holds, print what the run and its SuperLink have said."""
        try:
            wait_until(condition, process)
        except AssertionError:
            for name in ("run", "superlink"):
                print(f"{name}.log ends:\n{(self.folder / f'{name}.log').read_text()[-20000:]}")
            raise

    def flwr(self, *arguments: str) -> None:
        """Call Flower's command in this process: its imports take a second."""
        done = CliRunner(env=self.env).invoke(flwr_command, arguments)
        assert done.exit_code == 0, done.output

    def statuses(self) -> list[str]:
        """The status of each run, the newest first."""
        command = [str(BIN / "flwr"), "ls", "lab", "--format", "json"]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True)
        return [run["status"] for run in json.loads(done.stdout)["runs"]]

    def stop(self) -> None:
        """Stop the newest run, as a user does."""
        *_, newest = re.findall(r"started run (\d+)", (self.folder / "run.log").read_text())
        self.flwr("stop", newest, "lab")

    def hang(self, *clients: int) -> None:
        """Let all clients hang, and wait until these do."""
        for client in clients:
            (self.marks / f"hangs-{client}").unlink(missing_ok=True)
        (self.marks / "hang").touch()
        wait_until(lambda: all((self.marks / f"hangs-{client}").exists() for client in clients))
