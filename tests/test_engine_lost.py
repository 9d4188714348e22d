"""Ray dies: the run ends with one sentence, before Ray ends the process silently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).parents[1]
RUN = """
import os, random, signal, sys, threading
from pathlib import Path
from flexfl.config import Settings
from flexfl.engine.availability import TraceClientManager, remember
from flexfl.engine.experiment import prepare
from flexfl.engine.run import virtual_transport
from flexfl.engine.server import RoundServer
from flexfl.engine.transports.base import EngineLost

settings = Settings(
    # Clients without memory that train long: Ray is asked for something during a small part of the time
    # only, so that its death hardly ever comes between that and the question whether it lives.
    strategy="fedavg", model="mlp", num_clients=4, num_rounds=10**6, evaluate_every=10**6, local_steps=500,
    trace="always", num_workers=1, client_gpus=0.0,
)
experiment = prepare(settings)
transport = virtual_transport(experiment)

def kill():
    for entry in Path("/proc").iterdir():
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if sys.argv[1] in name and int(rest.split()[1]) == os.getpid():
            os.kill(int(entry.name), signal.SIGKILL)

def observe(record):
    if record["round"] == 5:
        threading.Timer(random.random() / 10, kill).start()

manager = TraceClientManager(experiment.availability, transport, 0)
server = RoundServer(experiment.strategy, manager, 10**6, [observe])
try:
    server.fit(10**6)
except EngineLost as error:
    message = str(error)
finally:
    transport.close()
print(message)
sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_dead_ray_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", RUN, name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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
