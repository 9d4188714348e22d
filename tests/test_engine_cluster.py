"""A Ray cluster of two nodes: one of them shares memory with the driver, which alone has the data."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from own_parts import METHODS, Folder, of_the_page

import sim
from benchmarks.cluster import cluster
from fedtide.engine.transports.base import EngineLost
from fedtide.engine.transports.ray import cluster as started
from fedtide.engine.transports.ray.cluster import Nodes, code, start_ray

RUN = ["--num-clients", "80", "--num-rounds", "4", "--trace", "pools:first=8+lost:p=0.1", "--json"]
RUN += ["--strategy", "my_methods.Momentum:clip=0.5", "--model", "my_package.inner.Net", "--client-gpus", "0"]
RUN += ["--task", "my_package.task.here", "--no-report"]
SEEDS = ["--seed", "0", "1"]
ROOT = Path(sim.__file__).parent
TASK = """
import os

from fedtide.tasks import DatasetTask
from fedtide.tasks import digits


def here() -> DatasetTask:
    def load():
        if "HAS_DATA" not in os.environ:
            raise ValueError("the data are on another machine")
        return digits().load()

    return DatasetTask("here", load)
"""
DRIVER = """
import json
import sys

sys.path.insert(0, sys.argv[1])
import sim
from fedtide.engine.transports.ray import transport
from fedtide.engine.transports.ray.remote_vectors import VectorsOnNodes

transport.KEPT = 0  # vectors stay on the other machine, although they are small
sums, start_sum = [], VectorsOnNodes.start_sum
VectorsOnNodes.start_sum = lambda *about: sums.append(start_sum(*about)) or sums[-1]
for arguments in json.loads(sys.argv[2]):
    assert sim.main(arguments) == 0
assert any(sums)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster with a temporary folder of its own: Flower joins one that the usual folder names."""
    with cluster(2, store=0.2) as started:
        yield started


@pytest.mark.slow
def test_a_cluster_gives_the_same_results_as_one_machine(
    address: str, own: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run and a comparison, with a method, a model and a task of which the cluster gets copies."""
    own.write("my_methods.py", METHODS)
    (own.path / "my_package").mkdir()
    own.write("my_package/__init__.py", "")
    own.write("my_package/inner.py", of_the_page("my_model.py"))
    own.write("my_package/task.py", TASK)
    monkeypatch.setenv("HAS_DATA", "1")
    there = [*RUN, "--ray-address", address]
    both = json.dumps([[*there, "--num-workers", "2"], [*there, *SEEDS]])
    command = [sys.executable, "-c", DRIVER, str(ROOT), both]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=own.path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    single, compared = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert sim.main([*RUN, "--engine", "inline"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert single["weights_sha256"] == here["weights_sha256"]
    assert single["client_fits"] == here["client_fits"] > 0
    assert compared["failed"] == {}
    (cell,) = (own.path / "runs" / "cells").glob("*-seed0-*")
    assert json.loads((cell / "summary.json").read_text())["weights_sha256"] == here["weights_sha256"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_refused(address: str) -> None:
    """At once, in one line: Ray itself would retry for minutes."""
    with pytest.raises(ValueError, match=f"ray-address {re.escape(address)}: .* take --engine inline"):
        start_ray(0, address)


def test_the_usual_cluster_may_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ValueError, match=r"ray-address 127.0.0.1:1: .*refused"):
        start_ray(0, "auto")


OWN_RAY = """
import sys

import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
sys.path.insert(0, sys.argv[1])
import fedtide

of = {"num_rounds": 2, "model": "my_model.Net", "run_dir": "runs", "report": False, "progress": False}
print(fedtide.run(engine="ray", num_workers=2, client_gpus=0, **of).accuracy)
print(*(of_cell.run.accuracy for of_cell in fedtide.compare(seed=[0, 1], **of).runs))
"""


@pytest.mark.slow
def test_a_ray_that_somebody_else_has_started_imports_this_project(own: Folder) -> None:
    """In an environment where it is not installed."""
    own.write("my_model.py", of_the_page("my_model.py"))
    own.write("main.py", OWN_RAY)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=own.path, check=True)
    (site,) = (own.path / "env").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))  # whose own .pth files are not read
    command = [str(own.path / "env" / "bin" / "python"), "main.py", str(ROOT)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=own.path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    one, *cells = map(float, done.stdout.split()[-3:])
    assert one == cells[0]


def test_a_node_with_other_packages_is_refused(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is there from the beginning or not."""
    here = os.getpid()

    def reader() -> Callable[[], Mapping[str, str]]:
        return lambda: {"numpy": "2.3.1", "torch": "2.11.0" if os.getpid() == here else "2.10.0"}

    monkeypatch.setattr(started, "_reader", reader)
    with pytest.raises(EngineLost, match=r"^node [0-9.]+ has torch 2.10.0, this machine torch 2.11.0: "):
        Nodes()


def test_the_program_alone_is_sent() -> None:
    """Not what lies beside it, which may be large."""
    with code() as folder:
        files = [Path(at, name) for at, _, names in os.walk(folder, followlinks=True) for name in names]
        assert Path(folder, "fedtide", "engine", "run.py") in files
        assert sum(file.stat().st_size for file in files if file.parent.name != "__pycache__") < 5e6
