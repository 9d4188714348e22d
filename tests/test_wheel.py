"""The package as others get it: built, installed outside the checkout, and used by a separate Flower app."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from flower import ROOT, flwr_runs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

PACKAGES = {"clients", "flexfl", "strategies", "traces"}
DATA = {
    "flexfl/tasks/shakespeare.toml",
    "traces/patterns/pools.toml",
    "traces/patterns/pools_measured.json",
    "traces/recorded/phones.json",
}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the checkout in its PYTHONPATH; returns its standard output."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
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
    """A virtual environment with the wheel and the packages of the running environment."""
    folder = tmp_path_factory.mktemp("outside") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=folder)
    # Folders named in a .pth file come last in the path, and .pth files inside them are ignored: neither an
    # installed flexfl nor an editable installation of the checkout can take the place of the wheel.
    site_packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (Path(site_packages.strip()) / "test-environment.pth").write_text("\n".join(installed))
    # flwr starts Flower's other programs, which have to run in this environment too.
    for script in distribution("flwr").entry_points.select(group="console_scripts"):
        call = f"import sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n"
        (python.parent / script.name).write_text(f"#!{python}\n{call}")
        (python.parent / script.name).chmod(0o755)
    return folder


def test_the_wheel_holds_the_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    files = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.*")}
    assert packed == {path.as_posix() for path in files if path.parent.name != "__pycache__"}
    assert {name.partition("/")[0] for name in packed} == PACKAGES
    assert {name for name in packed if not name.endswith(".py")} == DATA


def test_installed_packages_come_from_the_wheel_and_find_their_data(
    environment: Path, tmp_path: Path
) -> None:
    code = f"""
import sys
from pathlib import Path
import clients, flexfl, strategies, traces
assert not any(Path(path).resolve() == Path({str(ROOT)!r}) for path in sys.path), sys.path
for package in (clients, flexfl, strategies, traces):
    assert Path(package.__file__).is_relative_to({str(environment)!r}), package.__file__
for name, options in (("pools", {{}}), ("pools", {{"source": "measured"}}), ("phones", {{}})):
    print(len(traces.TRACES[name](30, 0, **options).round(1).completion))
"""
    output = run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert output.split() == ["30"] * 3


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_separate_app_trains_with_an_installed_strategy(
    environment: Path, flower: dict[str, str], tmp_path: Path
) -> None:
    """With Flower's classic server, and beside it with its Message API."""
    app, other = (tmp_path / name for name in ("app", "message-app"))
    for folder in (app, other):
        shutil.copytree(ROOT / "examples" / "own-app", folder, ignore=shutil.ignore_patterns("__pycache__"))
    project = (app / "pyproject.toml").read_text()
    assert project.count('"server_app:app"') == 1
    (other / "pyproject.toml").write_text(project.replace('"server_app:app"', '"message_server_app:app"'))
    env = {key: value for key, value in flower.items() if key != "PYTHONPATH"}
    env["PATH"] = os.pathsep.join([str(environment / "bin"), env["PATH"]])
    few = {"strategy": "mimic", "num-rounds": 3, "clients-per-round": 10, "app": other}
    output, messages = flwr_runs(env, 10, [{"strategy": "mimic", "num-rounds": 40}, few], app=app)
    assert "Strategy execution finished" in messages, messages
    assert messages.count("'active': 10, 'rejected': 0") >= 3, messages
    found = re.findall(r"fit progress: \((\d+), ([\d.e-]+), \{'accuracy': ([\d.e-]+)\}", output)
    assert [int(number) for number, _, _ in found] == list(range(1, 41)), output
    assert output.count("received 5 results and 0 failures") == 40
    counts = re.search(r"'active': \[(.*?)\].*'rejected': \[(.*?)\]", output, re.DOTALL)
    assert counts, output
    active, rejected = (re.findall(r"\(\d+, (\d+)\)", column) for column in counts.groups())
    assert (active, rejected) == (["5"] * 40, ["0"] * 40)
    loss, accuracy = np.array(found, dtype=float)[:, 1:].T
    assert accuracy[0] < 0.5
    assert accuracy[-10:].mean() > 0.8
    assert loss[-1] < 0.4 * loss[0]  # with FedAvg it is never below 0.45
