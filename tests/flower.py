"""Runs of the app on a separate Flower installation, and the same runs inline."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
RAY_GAVE_UP = "The current node timed out during startup"  # after 30 s, which cannot be set
APPS: dict[str, set[Path]] = {}  # those that run or ran, by FLWR_HOME


def processes_of(home: Path) -> list[int]:
    """Return the running processes with this FLWR_HOME, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"FLWR_HOME={home}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return [pid for pid in found if pid != os.getpid()]


def end_processes(home: Path) -> None:
    """Terminate the processes with this FLWR_HOME; kill those that do not end."""
    for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 60.0)):
        deadline = time.monotonic() + patience
        for pid in processes_of(home):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while processes_of(home) and time.monotonic() < deadline:
            time.sleep(0.1)


@contextmanager
def installation(home: Path) -> Iterator[dict[str, str]]:
    """Yield the environment variables of a separate Flower installation, and end its processes."""
    home.mkdir()
    http, control = free_ports(2)
    yield {
        **os.environ,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
        "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    }
    end_processes(home)
    assert not processes_of(home)


def command_of_run(settings: dict[str, Any], *arguments: str) -> list[str]:
    """Return the command that runs the app of the working directory."""
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return ["flwr", "run", ".", *arguments, "--run-config", config, "--stream"]


def flwr_run(
    env: dict[str, str], settings: dict[str, Any], *arguments: str, app: Path = ROOT, patience: float = 1000
) -> str:
    """Call `flwr run` in an app's folder; return its output."""
    done = subprocess.run(
        command_of_run(settings, *arguments),
        cwd=app,
        env=env,
        capture_output=True,
        text=True,
        timeout=patience,
    )
    return done.stdout + done.stderr


def flwr_runs(env: dict[str, str], runs: list[dict[str, Any]], *, app: Path = ROOT) -> list[str]:
    """Do several runs at the same time on one SuperLink, as they mostly wait; return their outputs.

    A run has `num-clients` or 10 nodes, and one worker, as starting one takes longer than its work; with
    `cpus` = 1, it has one for each core. `app` of a run is another app.
    """

    def call(settings: dict[str, Any]) -> str:
        nodes = f"num-supernodes={settings.get('num-clients', 10)}"
        nodes += f" client-resources-num-cpus={settings.get('cpus', os.cpu_count())}"
        config = {key: value for key, value in settings.items() if key not in ("app", "cpus")}
        folder, output = settings.get("app", app), ""
        for _ in range(5):
            output = flwr_run(env, config, "here", "--federation-config", nodes, app=folder)
            if RAY_GAVE_UP not in output:
                break
        return output

    start_superlink(env)
    installed = Path(env["FLWR_HOME"]) / "apps"
    with ThreadPoolExecutor(len(runs)) as pool:
        started = []
        for settings in runs:
            started.append(pool.submit(call, settings))
            apps = APPS.setdefault(env["FLWR_HOME"], set())
            apps.add(settings.get("app", app))
            # Flower does not install the same app twice at the same time.
            while len([*installed.glob("*/pyproject.toml")]) < len(apps) and not started[-1].done():
                time.sleep(0.05)
        return [run.result() for run in started]


def start_superlink(env: dict[str, str]) -> None:
    """Start the SuperLink for simulations, unless it runs: `flwr run` itself would give it only 15 s."""
    home, port = Path(env["FLWR_HOME"]), env["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    config = home / "config.toml"
    if config.exists():
        return
    address, control = f"127.0.0.1:{port}", f"127.0.0.1:{env['FLWR_LOCAL_CONTROL_API_PORT']}"
    command = ["flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", port, "--control-api-address", control]
    command += ["--database", str(home / "state.db")]
    with (home / "superlink.log").open("wb") as log:
        subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log, start_new_session=True)
    config.write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    wait_for_port(int(port))


def copy_app(folder: Path) -> Path:
    """Copy the app into a new folder, and return that."""
    folder.mkdir()
    for part in ("strategies", "clients", "traces", "fedtide"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("sim.py", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def free_ports(count: int) -> list[int]:
    """Return unused ports on 127.0.0.1."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_for_port(port: int) -> None:
    """Wait until a process listens at the port, for at most two minutes."""
    deadline = time.monotonic() + 120
    while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
        time.sleep(0.1)


def sim(settings: dict[str, Any]) -> None:
    """Run the same settings inline."""
    import sim

    flags = [f"--{key}={value}" for key, value in settings.items()]
    assert sim.main([*flags, "--engine=inline", "--client-gpus=0"]) == 0


def outcome(run_dir: Path, output: str = "") -> tuple[list[dict[str, Any]], np.ndarray]:
    """Return the records of the rounds and the final weights of the only run in a folder."""
    folders = list(run_dir.glob("*")) if run_dir.exists() else []
    assert len(folders) == 1, output
    assert (folders[0] / "report.html").exists(), output
    records = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    with np.load(folders[0] / "weights.npz") as arrays:
        return records[1:], np.concatenate([arrays[name].ravel() for name in arrays.files])


def assert_same_run(run_dir: Path, inline_dir: Path, output: str) -> list[dict[str, Any]]:
    """Compare a run under Flower with the inline one; return the records of the latter."""
    there, weights = outcome(run_dir, output)
    here, expected = outcome(inline_dir)
    for key in ("round", "failed", "selected", "active", "steps", "learning_rate", "events"):
        found, wanted = [r[key] for r in there], [r[key] for r in here]
        assert found == wanted, f"{key}: {found} under Flower, {wanted} inline"
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-7)
    return here
