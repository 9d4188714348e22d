"""A Ray cluster of two nodes: only one of them shares memory with the driver, as on one machine."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from waiting import PATIENCE

import sim
from flexfl.engine.transports.ray.cluster import start_ray

ROOT = Path(__file__).parents[1]
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import ray
from flexfl.ground import dotted
from flexfl.engine.transports.ray.cluster import start_ray

for name in ("my_file.part", "my_package.inner.part"):  # of the working directory
    dotted.load("task", name)
start_ray(1, sys.argv[2])

@ray.remote
def files():
    import sim, my_file, my_package.inner
    return sim.__file__, my_file.__file__, my_package.inner.__file__

print(*ray.get(files.remote()))
"""
RUN = ["--num-clients", "8", "--num-rounds", "4", "--trace", "pools:first=8+lost:p=0.1", "--json"]
RUN += ["--cohort", "stacked"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster with a temporary folder of its own: Flower joins one that the usual folder names."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder}
        cluster = [sys.executable, "-c", CLUSTER]
        with subprocess.Popen(cluster, text=True, env=environment, **pipes) as process:
            yield process.stdout.readline().strip()
            process.stdin.close()
            process.wait(PATIENCE)


def last_line(*command: str, folder: Path = ROOT) -> str:
    """Run Python without PYTHONPATH; return the last line that it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    call = [sys.executable, *command]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_a_cluster_gives_the_same_result_as_one_machine(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--strategy", "efl", "--client-gpus", "0", "--run-dir", str(tmp_path)]
    there = json.loads(last_line("sim.py", *RUN, "--ray-address", address, "--num-workers", "2", *flags))
    capsys.readouterr()
    assert sim.main([*RUN, "--engine", "inline", *flags]) == 0
    here = json.loads(capsys.readouterr().out)
    assert there["weights_sha256"] == here["weights_sha256"]
    assert there["client_fits"] == here["client_fits"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "cluster"])
def test_workers_find_the_code_wherever_the_driver_runs(address: str, tmp_path: Path, where: str) -> None:
    """A Ray of its own uses the same files; a cluster, which may be on other machines, gets copies."""
    (tmp_path / "my_package").mkdir()
    for name in ("my_file.py", "my_package/__init__.py", "my_package/inner.py"):
        (tmp_path / name).write_text("def part():\n    pass\n")
    found = last_line("-c", DRIVER, str(ROOT), address if where == "cluster" else "", folder=tmp_path).split()
    files = [ROOT / "sim.py", tmp_path / "my_file.py", tmp_path / "my_package" / "inner.py"]
    assert [Path(file).name for file in found] == [file.name for file in files]
    assert {file in map(str, files) for file in found} == {where == "here"}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_refused(address: str) -> None:
    """At once, in one line: Ray itself would retry for minutes."""
    with pytest.raises(ValueError, match=f"ray-address {re.escape(address)}: "):
        start_ray(0, address)
