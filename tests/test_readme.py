"""README's commands and its Python, as they stand, in the environment that its first command makes."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from flower import ROOT, copy_app
from packaging.requirements import Requirement
from test_docs import SHOWN, blocks

pytestmark = pytest.mark.slow
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && "
# Where a command would take minutes: fewer rounds, and no Ray where it is not needed.
SHORTER = {
    "--seed 0 1 2": "--seed 0 1 2 --num-rounds 5",
    "num_rounds=50": "num_rounds=5",
    '"phones"])': '"phones"], num_rounds=5, num_workers=1)',
}
# What README shows as a flag only, with settings of its own.
TUNE = "--strategy fedavg mifa --tune learning-rate=0.01..1 --tune-trials 2 --num-rounds 2 --num-workers 1"
VISITS = """
from datasets import Dataset
rows = {"x": [*range(60)], "clinic": [x % 3 for x in range(60)], "again": [x % 2 for x in range(60)]}
Dataset.from_dict(rows).save_to_disk("visits")
"""


def needed(requirements: list[str]) -> dict[str, Distribution]:
    """Return the distributions that pip installs for some requirements, of those that are installed here."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    asked = set()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in asked or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        asked.add(str(wanted))
        made = found.setdefault(wanted.name.lower(), distribution(wanted.name))
        for text in made.requires or ():
            inner = Requirement(text)
            extras = ("", *wanted.extras)
            if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                inner.marker = None
                waiting.append(inner)
    return found


def install(distributions: list[Distribution], environment: Path) -> None:
    """Link distributions into a virtual environment, and make their commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    paths = {"base": str(environment), "platbase": str(environment)}
    site, python = Path(sysconfig.get_path("purelib", vars=paths)), environment / "bin" / "python"
    for one in distributions:
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(one.locate_file(name))
        for point in one.entry_points.select(group="console_scripts"):
            script = environment / "bin" / point.name
            call = f"import sys; from {point.module} import {point.attr} as main; sys.exit(main())"
            script.write_text(f"#!{python}\n{call}\n")
            script.chmod(0o755)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with what its requirements.txt names and brings in `.venv`, and no more.

    Downloading it takes minutes: it is linked from the environment of the tests, in which CI runs the whole
    command.
    """
    folder = copy_app(tmp_path_factory.mktemp("readme") / "fedtide")
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = [text for line in lines if (text := line.partition("#")[0].strip())]
    install([*needed(listed).values()], folder / ".venv")
    return folder


def run(command: str, project: Path, env: dict[str, str]) -> str:
    """Run a command in bash; return its output."""
    for whole, shorter in SHORTER.items():
        command = command.replace(whole, shorter)
    clean = {key: value for key, value in env.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    call = ["bash", "-c", command]
    done = subprocess.run(
        call, cwd=project, env=clean, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


COMMANDS = [command.removeprefix(INSTALL) for command in SHOWN["README.md"]]


def test_readme_shows_what_is_run_here() -> None:
    first, *_, last = SHOWN["README.md"]
    assert first.startswith(INSTALL)
    assert last == f"{INSTALL}.venv/bin/python -m pytest -n 2 --dist loadgroup"  # in which this is run


@pytest.mark.parametrize("command", COMMANDS[:-3], ids=lambda command: command[17:60])
def test_a_command(project: Path, command: str) -> None:
    assert run(command, project, dict(os.environ))


def test_flwr_run(project: Path, flower: dict[str, str]) -> None:
    """After `source`; the SuperLink for simulations is a private one."""
    source, command = COMMANDS[-3:-1]
    assert "round 5/5  accuracy" in run(f"{source}\n{command}", project, flower)


def test_the_example_in_python(project: Path) -> None:
    (example,) = blocks("README.md", "python")
    for whole, shorter in SHORTER.items():
        example = example.replace(whole, shorter)
    (project / "example.py").write_text(example)
    assert "round 5/5  accuracy" in run(".venv/bin/python example.py", project, dict(os.environ))


def test_a_search_and_a_data_set_of_hugging_face(project: Path) -> None:
    """In a folder, without the hub."""
    assert run(f".venv/bin/python sim.py {TUNE}", project, dict(os.environ))
    (project / "visits.py").write_text(VISITS)
    flags = "--task hf:visits,label=again,client=clinic --num-clients 3 --num-rounds 2"
    assert run(f".venv/bin/python visits.py && .venv/bin/python sim.py {flags}", project, dict(os.environ))
