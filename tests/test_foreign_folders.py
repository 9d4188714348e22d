"""Folders and names of somebody else's: nothing of them is imported, called, or run by a spreadsheet."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import Done

import fedtide
import sim
from fedtide.base import dotted
from fedtide.base.errors import SettingsError
from fedtide.base.specs import find
from fedtide.base.tables import csv_text
from fedtide.federation import trace_specs
from fedtide.report.__main__ import main as report

MINE = """
import signal
from pathlib import Path

from torch import nn

from strategies.fedavg import FedAvg

Path(__file__).with_name("imported").touch()
stopped = Path(__file__).with_name("stopped")

class Mine(FedAvg):
    pass

class Stops(FedAvg):
    def update(self, replies):
        super().update(replies)
        if not stopped.exists():
            stopped.touch()
            signal.raise_signal(signal.SIGINT)

class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs):
        super().__init__(nn.Flatten(), nn.Linear(64, num_outputs))
"""
SMALL = ["--num-clients=4", "--local-steps=2", "--engine=inline", "--no-report", "--trace=always"]


def cli(*arguments: str, cwd: Path) -> Done:
    """Run the command line as in a new process, which has imported and named nothing yet."""
    out, err, code = StringIO(), StringIO(), 0
    sys.modules.pop("mine", None)
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "path", [*sys.path]):
        try:
            with patch.object(dotted, "_named_by", {}):
                code = sim.main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
    sys.modules.pop("mine", None)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules, and in it a finished run."""
    folder = tmp_path_factory.mktemp("original")
    (folder / "mine.py").write_text(MINE)
    done = cli(*SMALL, "--strategy=mine.Mine", "--model=mine.Net", "--num-rounds=1", cwd=folder)
    assert done.code == 0, done.err
    (run,) = (folder / "runs").iterdir()
    run.rename(folder / "run")
    return folder


@pytest.fixture
def here(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: what somebody has received, of which nothing was imported yet."""
    folder = shutil.copytree(original, tmp_path / "received")
    (folder / "imported").unlink()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(dotted, "_named_by", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("mine", None)


def change(run: Path, **settings: str) -> None:
    """Set settings of a run folder, by key with underscores, as TOML."""
    text = (run / "config.toml").read_text()
    for key, value in settings.items():
        name = key.replace("_", "-")
        text, times = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text, count=1)
        assert times == 1
    (run / "config.toml").write_text(text)


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def compared(folder: Path) -> Path:
    """Make the run the only cell of a comparison."""
    (folder / "cells").mkdir()
    (folder / "run").rename(folder / "cells" / "run")
    (folder / "compare-x").mkdir()
    cell = {"strategy": "mine.Mine", "folder": "runs/cells/run"}
    (folder / "compare-x" / "cells.json").write_text(json.dumps([cell]))
    return folder / "compare-x"


LINE = "config.toml names code that is not of fedtide: model mine.Net, strategy mine.Mine;"


def test_resuming_a_foreign_folder_imports_nothing_of_it(here: Path) -> None:
    """Not even with the modules in it, and in it; the line says what is named, where, and what to do."""
    shutil.copy(here / "mine.py", here / "run")
    before = content(here)
    for folder, cwd in (("run", here), (".", here / "run")):
        done = cli("--resume", folder, "--num-rounds=2", cwd=cwd)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1
        assert f"{Path(folder, 'config.toml')} names code that is not of fedtide: " in done.err
        assert LINE in done.err
        assert "--trust (in Python, trust=True)" in done.err
    assert content(here) == before


WAYS: dict[str, Any] = {
    "run": lambda here: fedtide.run(resume=here / "run", num_rounds=2, progress=False),
    "model": lambda here: fedtide.load(here / "run").model(),  # type: ignore[union-attr]
    "cell": lambda here: fedtide.load(compared(here)).runs[0].run.model(),  # type: ignore
}


@pytest.mark.parametrize("way", WAYS)
def test_python_imports_nothing_of_it(here: Path, way: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(LINE)):
        WAYS[way](here)
    assert not (here / "imported").exists()


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_a_report_is_made_of_what_the_folder_has(here: Path, kind: str, capsys: Any) -> None:
    """It says what is missing; what has to be imported for that is imported with --trust only."""
    folder = here / "run" if kind == "run" else compared(here)
    assert report([str(folder)]) == 0
    assert not (here / "imported").exists()
    assert "names code that is not of fedtide: model mine.Net" in (folder / "report.html").read_text()
    assert report([str(folder), "--trust"]) == 0
    assert (here / "imported").exists()
    assert "not of fedtide" not in (folder / "report.html").read_text()
    assert capsys.readouterr().err == ""


def test_no_function_of_the_system_is_called(here: Path) -> None:
    """Neither where only the folder names it, nor where it is trusted, or the user names it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim:
        names = {"strategy": '"fedavg"', "model": '"logistic"', "trace": '"os.kill"', "seed": "9"}
        change(here / "run", num_clients=str(victim.pid), **names)
        built_in = "trace os.kill is of type builtin_function_or_method"
        for flags, says in (
            ([], "names code that is not of fedtide: trace os.kill;"),
            (["--trust"], f"{built_in}; it must be a class or a function"),
            (["--trace=os.kill"], built_in),
        ):
            done = cli("--resume=run", *flags, cwd=here)
            assert done.code == 2
            assert says in done.err
        assert victim.poll() is None
        victim.communicate(b"\n")
    assert victim.returncode == 0
    change(here / "run", num_clients="4", task='"os.abort"', trace='"always"')
    fedtide.load("run").model()  # type: ignore[union-attr]  # for which the task is not needed
    change(here / "run", model='"os.abort"', task='"digits"')
    with pytest.raises(SettingsError, match=r"not of fedtide: .*model os\.abort"):
        fedtide.load("run").model()  # type: ignore[union-attr]
    with pytest.raises(SettingsError, match=r"os\.abort is of type builtin_function_or_method"):
        fedtide.load("run", trust=True).model()  # type: ignore[union-attr]


def test_a_summary_names_no_code(here: Path) -> None:
    """It says which model was the task's own, and is no place where code is read about."""
    change(here / "run", model='""')
    file = here / "run" / "summary.json"
    summary = json.loads(file.read_text())
    file.write_text(json.dumps({**summary, "model": "mine.Net"}))
    with suppress(SettingsError):  # the task's own model is another
        fedtide.load("run").model()  # type: ignore[union-attr]
    assert not (here / "imported").exists()


def test_a_logger_that_only_the_folder_names_is_not_imported(here: Path) -> None:
    change(here / "run", log='"tensorboard,mine.Log"')
    done = cli("--resume=run", "--num-rounds=2", cwd=here)
    assert done.code == 2
    assert "model mine.Net, log mine.Log, strategy mine.Mine;" in done.err
    assert not (here / "imported").exists()
    assert cli("--resume=run", "--num-rounds=2", "--log=", "--trust", cwd=here).code == 0


@pytest.mark.parametrize("given", ['["mine.f"]', '["f1_score:average=macro,mine.f"]', '"log_loss,mine.f"'])
def test_a_report_imports_no_metric_that_only_the_folder_names(here: Path, given: str) -> None:
    """However the folder writes it."""
    change(here / "run", metrics=given, strategy='"fedavg"', model='"logistic"')
    (here / "run" / "clients.json").unlink(missing_ok=True)
    assert report([str(here / "run")]) == 0
    assert not (here / "imported").exists()


def test_a_folder_that_is_trusted_or_whose_parts_are_named_again_goes_on(here: Path) -> None:
    named = ("--strategy=mine.Mine", "--model=mine.Net")
    assert cli("--resume=run", "--num-rounds=2", named[0], cwd=here).code == 2
    for number, flags in enumerate([named, ("--trust",)], 2):
        done = cli("--resume=run", f"--num-rounds={number}", *flags, cwd=here)
        assert done.code == 0, done.err
    assert type(fedtide.load("run", trust=True).model()).__name__ == "Net"  # type: ignore[union-attr]


def test_trust_is_for_folders(here: Path) -> None:
    for flags in (["--trust"], ["--trust", "--seed", "0", "1"]):
        done = cli(*flags, cwd=here)
        assert done.code == 2
        assert "trust" in done.err
    assert not (here / "runs").exists() or not [*(here / "runs").iterdir()]


def test_the_line_of_an_interrupted_run_can_be_pasted(here: Path) -> None:
    call = [sys.executable, sim.__file__, *SMALL, "--strategy=mine.Stops", "--num-rounds=3"]
    done = subprocess.run(call, cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    command = re.search(r"interrupted: python sim.py (.* --trust) continues the run", done.stdout)
    assert command, done.stdout
    assert cli(*command[1].split(), cwd=here).code == 0


def test_what_this_process_has_named_needs_no_trust(here: Path) -> None:
    """Nor does it after somebody else's folder has named the same."""
    with pytest.raises(SettingsError):
        fedtide.load("run").model()  # type: ignore[union-attr]
    parts: dict[str, Any] = {"strategy": "mine.Mine", "model": "mine.Net"}
    small: dict[str, Any] = {"num_clients": 4, "num_rounds": 1, "progress": False, "report": False}
    run = fedtide.run(**parts, **small, engine="inline")
    again = fedtide.load(run.path)
    assert isinstance(again, fedtide.Run)
    for one in (run, again):
        assert type(one.model()).__name__ == "Net"
    table = fedtide.compare(**parts | {"strategy": ["mine.Mine", "fedavg"]}, **small, num_workers=1)
    for _, one in table.runs:
        assert type(one.model()).__name__ == "Net"


def test_a_foreign_cluster_is_not_connected_to(here: Path) -> None:
    """Its processes would send this one code."""
    cluster = {"engine": '"ray"', "ray_address": '"192.0.2.1:6379"'}
    change(here / "run", strategy='"fedavg"', model='"logistic"', **cluster)
    done = cli("--resume=run", "--num-rounds=2", cwd=here)
    assert done.code == 2
    assert "resume run: the run was on the cluster at 192.0.2.1:6379; give ray-address again" in done.err


def test_parts_of_fedtide_do_not_open_the_working_directory(here: Path) -> None:
    """A module in it could take the place of one that is imported later."""
    find("strategy", {}, "strategies.fedavg.FedAvg")
    assert os.getcwd() not in sys.path
    find("strategy", {}, "mine.Mine")
    assert os.getcwd() in sys.path


@given(st.lists(st.sampled_from(["a.b", "always", "+", " ", ":p=1", "1", "/", ",q=c.d", "e.f"]), max_size=8))
def test_no_part_of_a_trace_is_overlooked(words: list[str]) -> None:
    text = "".join(words)
    names = {spec.partition(":")[0].strip() for spec in trace_specs(text)}
    asked = {("trace", name) for name in names if dotted.is_dotted("trace", name)}
    assert asked <= {*dotted.named({"trace": text})}


def test_names_of_clients_are_no_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("'quoted'", "-1.5", "=cmd|' /C calc'!A0", "a\x1b[2Jb")
    rows = [f'"{name}",{i},{i % 2}\n' for i in range(10) for name in names]
    Path("data.csv").write_text("".join(["who,x,y\n", *rows]))
    task = "csv:file=data.csv,target=y,client=who"
    run = fedtide.run(task=task, num_clients=4, num_rounds=1, report=False, progress=False, engine="inline")
    assert {*run.client_names} == {*names[:3], "a␛[2Jb"}
    cells = [name for _, name in csv.reader((run.path / "clients.csv").open(newline=""))]
    assert {*cells} == {"name", "''quoted'", "-1.5", "'=cmd|' /C calc'!A0", "a␛[2Jb"}


@given(st.lists(st.text(st.sampled_from("=+-@'a1.e\t\r\n\x1b\x9b,\" \uff1d"))))
def test_every_cell_is_a_text_or_a_number(texts: list[str]) -> None:
    """Without control characters; others have their original texts but for an apostrophe."""
    rows = [*csv.reader(StringIO(csv_text([("", text, -1.5) for text in texts]), newline=""))]
    for text, (_, cell, number) in zip(texts, rows, strict=True):
        assert number == "-1.5"
        assert cell.isprintable() or "\ufffd" in cell
        if cell.startswith(("=", "+", "-", "@", "\uff1d")):
            float(cell)
        if text.isprintable():
            assert cell.removeprefix("'") == text
