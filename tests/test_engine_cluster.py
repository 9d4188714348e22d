"""A Ray cluster of two nodes: only one of them shares memory with the driver, as on one machine."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest
from own_parts import METHODS, Folder, of_the_page
from waiting import PATIENCE

import sim
from fedtide.engine.transports.ray.cluster import start_ray

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
RUN = ["--num-clients", "8", "--num-rounds", "4", "--trace", "pools:first=8+lost:p=0.1", "--json"]
RUN += ["--strategy", "my_methods.Momentum:clip=0.5", "--model", "my_package.inner.Net", "--client-gpus", "0"]


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


@pytest.mark.slow
def test_a_cluster_gives_the_same_result_as_one_machine(
    address: str, own: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a method and a rule from a file and a model from a package, of which the cluster gets copies."""
    own.write("my_methods.py", METHODS)
    (own.path / "my_package").mkdir()
    own.write("my_package/__init__.py", "")
    own.write("my_package/inner.py", of_the_page("my_model.py"))
    command = [sys.executable, sim.__file__, *RUN, "--ray-address", address, "--num-workers", "2"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=own.path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    there = json.loads(done.stdout.splitlines()[-1])
    assert sim.main([*RUN, "--engine", "inline"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert there["weights_sha256"] == here["weights_sha256"]
    assert there["client_fits"] == here["client_fits"] > 0


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_refused(address: str) -> None:
    """At once, in one line: Ray itself would retry for minutes."""
    with pytest.raises(ValueError, match=f"ray-address {re.escape(address)}: "):
        start_ray(0, address)
