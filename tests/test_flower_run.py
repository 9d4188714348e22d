"""The same run under Flower's own engines: its Simulation Runtime, and real SuperNodes on this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]


def processes_of(home: Path) -> list[int]:
    """Living processes that were started with this FLWR_HOME, but not this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"FLWR_HOME={home}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return [pid for pid in found if pid != os.getpid()]


def end_processes(home: Path) -> None:
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        for pid in processes_of(home):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while processes_of(home) and time.monotonic() < deadline:
            time.sleep(0.1)


@pytest.fixture
def flower(tmp_path: Path, free_ports: Any) -> Iterator[dict[str, str]]:
    """Environment of a Flower installation of its own, all of whose processes are ended afterwards."""
    home = tmp_path / "flower-home"
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
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    end_processes(home)
    assert not processes_of(home)


def flwr_run(env: dict[str, str], settings: dict[str, Any], *arguments: str) -> str:
    """Call `flwr run`; returns all that it printed."""
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    done = subprocess.run(
        [BIN / "flwr", "run", ".", *arguments, "--run-config", config, "--stream"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.stdout + done.stderr


def sim(settings: dict[str, Any]) -> None:
    """Run the same settings inline."""
    import sim

    flags = [f"--{key}={value}" for key, value in settings.items()]
    assert sim.main([*flags, "--engine=inline", "--client-gpus=0"]) == 0


def outcome(run_dir: Path, output: str = "") -> tuple[list[dict[str, Any]], np.ndarray]:
    """The records of the rounds, and the final weights, of the only run in a folder."""
    folders = list(run_dir.glob("*")) if run_dir.exists() else []
    assert len(folders) == 1, output
    records = [json.loads(line) for line in (folders[0] / "metrics.jsonl").read_text().splitlines()]
    with np.load(folders[0] / "weights.npz") as arrays:
        return records[1:], np.concatenate([arrays[name].ravel() for name in arrays.files])


def assert_same_run(run_dir: Path, inline_dir: Path, output: str) -> list[dict[str, Any]]:
    there, weights = outcome(run_dir, output)
    here, expected = outcome(inline_dir)
    for key in ("round", "selected", "active", "steps", "failed", "learning_rate", "events"):
        assert [r[key] for r in there] == [r[key] for r in here], key
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-7)
    return here


def test_flwr_run_gives_what_sim_gives(flower: dict[str, str], tmp_path: Path) -> None:
    settings = {
        "strategy": "scheme-c",
        "model": "logistic",
        "trace": "pools:first=8",
        "arrivals": "5=2",
        "departures": "0=4",
        "num-clients": 6,
        "clients-per-round": 4,
        "num-rounds": 4,
        "local-steps": 6,
        "seed": 96,  # in which a selected client drops in mid-round
    }
    nodes = ("local", "--federation-config", "num-supernodes=6 client-resources-num-cpus=1")
    output = flwr_run(flower, {**settings, "run-dir": str(tmp_path / "flwr")}, *nodes)
    sim({**settings, "run-dir": tmp_path / "inline"})
    records = assert_same_run(tmp_path / "flwr", tmp_path / "inline", output)
    # The run had all that it should have had.
    assert any(r["failed"] for r in records)
    assert any(step < 6 for r in records for step in r["steps"])
    assert [e["event"] for r in records for e in r["events"]] == ["arrival", "departure"]
    assert {0, 5} <= {k for r in records for k in r["active"]}

    # On the same SuperLink: fewer nodes than clients are no reason to wait for ever.
    few = ("local", "--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
    changes = {"run-dir": str(tmp_path / "few"), "connect-timeout": 2.0}
    output = flwr_run(flower, {**settings, **changes}, *few)
    assert "only 2 of num-clients=6 clients are connected after 2 s" in " ".join(output.split())
    assert "num-supernodes=6" in output
    assert not (tmp_path / "few").exists()


def test_flwr_run_keeps_what_clients_remember(flower: dict[str, str], tmp_path: Path) -> None:
    """In Flower's Context, over lost replies, for training and for the test of personal models."""
    settings = {
        "strategy": "apfl:alpha-mode=step",
        "model": "logistic",
        "trace": "bernoulli:p=0.7+lost:p=0.3",
        "evaluate-on": "members",
        "num-clients": 3,
        "num-rounds": 3,
        "local-steps": 4,
        "seed": 5,  # in which clients lose a reply, one of them before it takes part again
    }
    nodes = ("local", "--federation-config", "num-supernodes=3 client-resources-num-cpus=1")
    output = flwr_run(flower, {**settings, "run-dir": str(tmp_path / "flwr")}, *nodes)
    sim({**settings, "run-dir": tmp_path / "inline"})
    here = assert_same_run(tmp_path / "flwr", tmp_path / "inline", output)
    there, _ = outcome(tmp_path / "flwr")
    assert any("reply lost" in record["failed"].values() for record in here)
    for record, expected in zip(there, here, strict=True):
        assert record.get("client_evaluated") == expected.get("client_evaluated")
        assert record.get("client_loss") == pytest.approx(expected.get("client_loss"), rel=1e-4)


def test_supernodes_on_this_machine_give_what_sim_gives(
    flower: dict[str, str], tmp_path: Path, free_ports: Any
) -> None:
    settings = {
        "strategy": "fedavg",
        "model": "logistic",
        "trace": "always",
        "num-clients": 3,
        "num-rounds": 2,
        "local-steps": 5,
    }
    port, *node_ports = free_ports(4)
    address = f"127.0.0.1:{port}"
    config = f'[superlink]\ndefault = "lab"\n\n[superlink.lab]\naddress = "{address}"\ninsecure = true\n'
    (Path(flower["FLWR_HOME"]) / "config.toml").write_text(config)
    commands = [["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]]
    for client, node_port in enumerate(node_ports):
        node = ["--superlink", address, "--port", str(node_port), "--node-config", f"client-id={client}"]
        commands.append(["flower-supernode", "--insecure", *node])
    log = tmp_path / "flower.log"
    with log.open("w") as sink:
        for command in commands:
            subprocess.Popen(
                [BIN / command[0], *command[1:]], cwd=tmp_path, env=flower, stdout=sink, stderr=sink
            )
    deadline = time.monotonic() + 30
    while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
        time.sleep(0.1)
    output = flwr_run(flower, {**settings, "run-dir": str(tmp_path / "flwr")}, "lab")
    sim({**settings, "run-dir": tmp_path / "inline"})
    assert_same_run(tmp_path / "flwr", tmp_path / "inline", output + log.read_text())
