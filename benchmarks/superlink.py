"""A SuperLink, many nodes in one process (fleet.py) and `flwr run`, on this machine, and what they use."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower import BIN, end_processes, free_ports, wait_for_port

ROOT = Path(__file__).parents[1]
ROLES = {
    "superlink": "SuperLink",
    "superlink.py": "SuperLink",
    "flwr-serverapp": "ServerApp",
    "fleet.py": "nodes",
}
TICKS = os.sysconf("SC_CLK_TCK")


class Usage(threading.Thread):
    """Watches the processes of a Flower home: CPU seconds, and the memory in MiB once a second, by role."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.ended = f"FLWR_HOME={home}".encode(), threading.Event()
        self.cpu: dict[str, dict[str, float]] = {role: {} for role in {*ROLES.values()}}
        self.memory: dict[str, list[float]] = {role: [] for role in {*ROLES.values()}}

    def run(self) -> None:
        """Look once a second."""
        while not self.ended.wait(1.0):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError, IndexError):
                    if self.home in (process / "environ").read_bytes().split(b"\0"):
                        self._look(process)

    def seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each role."""
        return {role: sum(of.values()) for role, of in self.cpu.items()}

    def _look(self, process: Path) -> None:
        words = (process / "cmdline").read_bytes().decode().split("\0")[:3]
        role = next((role for name, role in ROLES.items() if any(w.endswith(name) for w in words)), None)
        if role is None:
            return
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        self.cpu[role][process.name] = (int(fields[11]) + int(fields[12])) / TICKS
        resident = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        self.memory[role].append(resident)


class ManyNodes:
    """One SuperLink with its nodes, in a folder of its own; everything is ended with the stack."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.options, self.folder = options, folder
        (home := folder / "home").mkdir()
        stack.callback(end_processes, home)
        (self.port,) = free_ports(1)
        self.env = {**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self.env |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1"}
        self._log = stack.enter_context((folder / "flower.log").open("wb"))
        self.ca = self._certificates() if options.tls else None
        secure = f'root-certificates = "{self.ca}"' if self.ca else "insecure = true"
        connection = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n'
        (home / "config.toml").write_text(f"{connection}{secure}\n")
        self.usage = Usage(home)
        self.usage.start()

    def superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, or start it again with what it has saved."""
        flags = ["--host", "127.0.0.1", "--port", str(self.port)]
        if self.ca:
            flags += [
                "--ssl-ca-certfile",
                str(self.ca),
                "--ssl-certfile",
                str(self.ca.with_name("server.pem")),
            ]
            flags += ["--ssl-keyfile", str(self.ca.with_name("server.key"))]
        else:
            flags.append("--insecure")
        if self.options.database:
            flags += ["--database", str(self.folder / "superlink.db")]
        ours = [sys.executable, str(ROOT / "deploy" / "superlink.py")]
        command = [str(BIN / "flower-superlink")] if self.options.plain else ours
        started = self._start(*command, *flags, stdout=self._log)
        wait_for_port(self.port)
        return started

    def fleet(self, nodes: int, *flags: str) -> None:
        """Start the nodes."""
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / "fleet.py"),
            f"127.0.0.1:{self.port}",
            str(nodes),
        ]
        command += [self.options.client, "--poll", str(self.options.poll), *flags]
        command += ["--ca", str(self.ca)] if self.ca else []
        self._fleet = self._start(*command, stdout=subprocess.PIPE)

    def run(self, settings: str) -> subprocess.Popen[bytes]:
        """Start `flwr run`; its output is in the file `run.log`."""
        command = [str(BIN / "flwr"), "run", ".", "lab", "--stream", "--run-config", settings]
        with (self.folder / "run.log").open("ab") as log:
            return self._start(*command, stdout=log, stderr=log)

    def told(self) -> dict[str, Any]:
        """End the nodes; return what they have seen."""
        self.usage.ended.set()
        self._fleet.send_signal(signal.SIGTERM)
        out, _ = self._fleet.communicate(timeout=120)
        told: dict[str, Any] = json.loads(out)
        return told

    def records(self) -> list[dict[str, Any]] | None:
        """Return the records of the rounds so far, of the only run folder; None: the app writes none."""
        files = list(self.folder.glob("runs/*/metrics.jsonl"))
        lines = files[0].read_text().splitlines(keepends=True)[1:] if files else []
        return [json.loads(line) for line in lines if line.endswith("\n")] if files else None

    def _start(self, *command: str, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=self.env, cwd=self.options.app, **({"stderr": self._log} | how))

    def _certificates(self) -> Path:
        env = self.env | {"CERTIFICATES": str(self.folder / "ca")}
        subprocess.run(
            [ROOT / "deploy" / "certificates.sh", "127.0.0.1"], check=True, capture_output=True, env=env
        )
        return self.folder / "ca" / "ca.crt"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `ManyNodes` reads."""
    parser.add_argument("--poll", type=float, default=3.0, help="seconds between a node's looks (3)")
    parser.add_argument("--database", action="store_true", help="the SuperLink's state in SQLite")
    parser.add_argument("--tls", action="store_true", help="with certificates")
    parser.add_argument(
        "--plain", action="store_true", help="flower-superlink instead of deploy/superlink.py"
    )
    parser.add_argument("--app", type=Path, default=ROOT, help="folder of the Flower app (this project)")
    parser.add_argument("--client", default="clients.numpy_client:app", help="its ClientApp, MODULE:NAME")
