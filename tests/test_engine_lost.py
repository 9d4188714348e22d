"""Ray dies: the run ends with one sentence, before Ray ends the process silently."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

from benchmarks.cluster import cluster

ROOT = Path(__file__).parents[1]
RUN = """
import os, random, signal, sys, threading
from pathlib import Path
from fedtide.config import Settings
from fedtide.engine.observers import Observer
from fedtide.engine.run import simulate
from fedtide.plan import Plan

def kill():
    for entry in Path("/proc").iterdir():
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if sys.argv[1] in name and int(rest.split()[1]) == os.getpid():
            os.kill(int(entry.name), signal.SIGKILL)

class Killer(Observer):
    def round(self, record):
        if record["round"] == 5:
            threading.Timer(random.random() / 10, kill).start()

settings = Settings(
    # Clients without memory that train long: Ray is asked for something during a small part of the time
    # only, so that its death hardly ever comes between that and the question whether it lives.
    strategy="fedavg", model="mlp", num_clients=4, num_rounds=10**6, evaluate_every=10**6, local_steps=500,
    trace="always", engine="ray", num_workers=1, client_gpus=0.0, checkpoint_every=-1,
)
*_, ended = simulate(Plan.of(settings), Path(sys.argv[2]), watch=lambda run: [Killer()])
print(ended.summary["failed"], flush=True)
os._exit(1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_dead_ray_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", RUN, name, str(tmp_path / name)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("gcs_server", "raylet")
    }
    says = {"gcs_server": "control process (GCS)", "raylet": "process on this machine (raylet)"}
    for name, process in started.items():
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1, err
        (line,) = [line for line in out.splitlines() if "has died, see the logs in" in line]
        assert line.startswith(f"Ray's {says[name]} has died")
        assert "Traceback" not in err


def control_processes(parent: int) -> list[int]:
    """Return the control processes of Ray that a child of this process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            _, _, above = Path("/proc", rest.split()[1], "stat").read_text().rpartition(")")
        except OSError:
            continue
        if "gcs_server" in name and int(above.split()[1]) == parent:
            found.append(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_cluster_that_loses_its_control_process_leaves_a_summary(tmp_path: Path) -> None:
    """Its patience is spent once: Ray's own ends after 60 seconds, and this process with it."""
    run = ["--strategy", "fedavg", "--trace", "always", "--num-clients", "4", "--num-rounds", "1000000"]
    run += ["--evaluate-every", "1000000", "--client-gpus", "0", "--no-report", "--run-dir", str(tmp_path)]
    with cluster(2, store=0.1) as address, (tmp_path / "said").open("w") as said:
        command = [sys.executable, "sim.py", "--ray-address", address, "--num-workers", "8", *run]
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("*/metrics.jsonl")), process)
        (control,) = control_processes(os.getpid())
        os.kill(control, signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
    lines = (tmp_path / "said").read_text().splitlines()
    assert "Ray has room for 2 workers, not 4" in lines
    assert "Ray's control process (GCS) does not answer; it has 30 s to come back" in lines
    assert any("has failed: Ray's control process (GCS) has died, see the logs in" in line for line in lines)
    (summary,) = tmp_path.glob("*/summary.json")
    assert "has died" in json.loads(summary.read_text())["failed"]
