"""The package as others get it: built, installed outside the checkout, and used by a separate Flower app."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flower import ROOT, flwr_runs

pytestmark = pytest.mark.slow

PACKAGES = {"clients", "fedtide", "strategies", "traces"}
DATA = {
    *(f"{package}/py.typed" for package in PACKAGES),
    "fedtide/tasks/shakespeare.toml",
    "traces/patterns/pools.toml",
    "traces/patterns/pools_measured.json",
    "traces/recorded/phones.json",
}
WHERE = """
import clients, fedtide, strategies, traces
print(*(package.__path__[0] for package in (clients, fedtide, strategies, traces)))
kinds = ("pools", {}), ("pools", {"source": "measured"}), ("phones", {})
print(*(len(traces.TRACES[name](30, 0, **options).round(1).completion) for name, options in kinds))
"""


def run(*command: str | Path, cwd: Path, path: str = "") -> str:
    """Run a command with this PYTHONPATH; return its standard output."""
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip install .` installs; pip downloads the build backend unless it is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", *isolation, "--wheel-dir", ".", cwd=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the installed wheel, which takes all other packages from the present one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    run(*pip, "install", "--no-deps", wheel, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def site(environment: Path) -> Path:
    """The folder with the installed wheel, to come first in PYTHONPATH."""
    (folder,) = environment.glob("lib/*/site-packages")
    return folder


def test_the_wheel_holds_the_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    files = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.*")}
    assert packed == {path.as_posix() for path in files if path.parent.name != "__pycache__"}
    assert {name.partition("/")[0] for name in packed} == PACKAGES
    assert {name for name in packed if not name.endswith(".py")} == DATA


def test_an_installation_has_the_commands_and_the_python_interface(environment: Path, tmp_path: Path) -> None:
    """The packages come from the wheel, and find their data."""
    bin_ = environment / "bin"
    assert "round 5/5  accuracy" in run(bin_ / "fedtide", "--num-rounds", "5", cwd=tmp_path)
    for program in ("fedtide", "fedtide-device", "fedtide-leave"):
        assert run(bin_ / program, "--help", cwd=tmp_path).startswith(f"usage: {program} [-h]")
    shown = run(bin_ / "python", "-c", f"import fedtide\nfedtide.run(num_rounds=5)\n{WHERE}", cwd=tmp_path)
    assert "round 5/5  accuracy" in shown
    *_, packages, sizes = shown.splitlines()
    assert all(Path(file).is_relative_to(environment) for file in packages.split())
    assert sizes == "30 30 30"
    assert len([*tmp_path.glob("runs/*/report.html")]) == 2


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_the_examples_train_with_an_installation(site: Path, flower: dict[str, str], tmp_path: Path) -> None:
    """Copied elsewhere, under `flwr run`: all of them, PyTorch's with a rule at its clients."""
    shutil.copytree(ROOT / "examples", tmp_path / "apps", ignore=shutil.ignore_patterns("__pycache__"))
    runs: list[dict[str, Any]] = [
        {"app": "pytorch-app", "strategy": "scaffold", "num-rounds": 8},
        {"app": "numpy-app", "strategy": "mifa", "num-rounds": 20},
        {"app": "classic-app", "strategy": "mimic", "num-rounds": 20},
    ]
    assert {run["app"] for run in runs} == {path.parent.name for path in tmp_path.glob("apps/*/task.py")}
    calls = [{**run, "app": tmp_path / "apps" / run["app"]} for run in runs]
    outputs = flwr_runs({**flower, "PYTHONPATH": str(site)}, calls)
    for settings, output in zip(runs, outputs, strict=True):
        accuracies = re.findall(r"'accuracy': ([\d.e-]+)", output)  # the server's come last in each round
        assert len(accuracies) > settings["num-rounds"], output
        assert float(accuracies[-1]) > 0.5, (settings, output)
        assert "takes no part" not in output
        assert "does not count" not in output
