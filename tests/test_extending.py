"""docs/extending.md: its files and its commands, as they stand on the page."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_parts import Folder

import sim
from fedtide.testing import contract

PAGE = (Path(sim.__file__).parent / "docs" / "extending.md").read_text(encoding="utf-8")
FILES = {block.partition("\n")[0]: block for block in re.findall(r"```python\n# (.*?)```", PAGE, re.DOTALL)}
COMMANDS = [
    re.sub(r"  +#.*", "", line).removeprefix("python sim.py ")
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
SMALL = (
    "--engine inline --client-gpus 0 --num-rounds 3 --local-steps 3 --num-workers 1 --cohort-size 20 --json"
)


@pytest.fixture
def page(own: Folder) -> Folder:
    """A folder with the files of the page, and the data that a command names."""
    from sklearn.datasets import load_wine

    for name, content in FILES.items():
        own.write(name, f"# {content}")
    wine = load_wine()
    np.savetxt(
        own.path / "wine.csv", np.column_stack([wine.data / wine.data.max(0), wine.target]), delimiter=","
    )
    (own.path / "poem.txt").write_text("the rain in spain stays mainly in the plain. " * 40)
    return own


def test_the_page_shows_every_kind_of_part() -> None:
    names = ("methods", "private", "model", "fine_tuning", "traces", "split", "data", "text", "selection")
    names += ("logger", "metrics", "patient")
    assert {*FILES} == {"test_my_methods.py", *(f"my_{name}.py" for name in names)}
    named = " ".join(COMMANDS)
    for flag in ("strategy", "model", "trace", "partition", "sizes", "task", "select", "log", "metrics"):
        assert re.search(rf"--{flag} my_", named)


def test_the_method_of_the_page_passes_its_own_test(page: Folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_methods.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(page.path), str(Path(sim.__file__).parent)])},
        cwd=page.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_the_other_method_of_the_page_keeps_the_promises(
    page: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(page.path)
    contract(importlib.import_module("my_patient").Patient)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_does_what_it_says(command: str, page: Folder, capsys: Any) -> None:
    arguments = shlex.split(command)
    assert sim.main([*shlex.split(SMALL), "--json", "--run-dir", str(page.path / "runs"), *arguments]) == 0
    shown = capsys.readouterr().out
    if "--list" in arguments:
        assert "my_methods.Momentum" in shown
        assert re.search(r"beta=0.9 +from 0 to 1\n", shown)
    elif "--seed" in arguments:
        assert [len(row["seeds"]) for row in json.loads(shown)["rows"]] == [2, 2, 2]
    elif "--show-trace" in arguments:
        hours = json.loads(shown)["online"]
        assert (min(hours), max(hours), len(hours)) == (0, 1, 48)
    else:
        summary = json.loads(shown)
        assert summary["rounds"] == 3
        assert summary["client_fits"] > 0
        assert summary["final"]["loss"] > 0
        if "--log" in arguments:
            lines = Path(summary["run_dir"], "curve.csv").read_text().splitlines()
            assert [line.partition(",")[0] for line in lines] == ["0", "1", "2", "3"]
            assert float(lines[-1].partition(",")[2]) == summary["final"]["loss"]
