"""Reading run folders: how the runs ended; what was changed by hand is refused in one line or skipped."""

import io
import json
import os
import shutil
import time
import tracemalloc
import zipfile
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtide.runs
import sim
from fedtide.base.files import read_arrays
from fedtide.engine import run_files as reader
from fedtide.engine.history import History
from fedtide.engine.read_run import find_runs, read_run
from fedtide.engine.run_files import records_in
from fedtide.engine.run_folder import lock
from fedtide.report.__main__ import main as report
from fedtide.report.subject import read_subject

SMALL = ["--model=logistic", "--num-clients=4", "--num-rounds=3", "--local-steps=2", "--engine=inline"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert sim.main([*SMALL, "--no-report", f"--run-dir={folder}"]) == 0
    (path,) = folder.iterdir()
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def lines(run: Path) -> list[bytes]:
    return (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)


ENDS: dict[str, dict[str, Any]] = {
    "finished": {},
    "interrupted": {"interrupted": True, "signal": "SIGINT"},
    "failed": {"failed": "No space left on device"},
}


@pytest.mark.parametrize("status", ENDS)
def test_every_reader_says_how_a_run_ended(run: Path, status: str, capsys: Any) -> None:
    summary = json.loads((run / "summary.json").read_text()) | ENDS[status]
    (run / "summary.json").write_text(json.dumps(summary))
    found = read_run(run)
    assert (found.status, bool(found.problem)) == (status, status != "finished")
    assert found.final == summary["final"]["accuracy"]
    assert fedtide.runs.main([str(run.parent)]) == 0
    assert f" {status}" in capsys.readouterr().out
    assert report([str(run)]) == 0
    text = (run / "report.html").read_text()
    assert (f"This run {found.problem}. " in text) == (status != "finished")
    assert (run / "clients.json").exists() == (status == "finished")


def test_runs_are_listed_by_what_sets_them_apart(run: Path, tmp_path: Path, capsys: Any) -> None:
    other = shutil.copytree(run, tmp_path / "second")
    config = (other / "config.toml").read_text()
    config = config.replace('strategy = "scheme-c"', 'strategy = "[red]x"').replace("seed = 0", "seed = 9")
    (other / "config.toml").write_text(config)
    (other / "summary.json").write_text("{")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "a-file").write_text("")
    runs = find_runs(tmp_path)
    assert [found.status for found in runs] == ["finished", "unfinished"]
    assert fedtide.runs.differing(runs) == ["strategy", "seed"]
    assert fedtide.runs.main([str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for expected in ("[red]x", f"{runs[0].final:.4f}", "not finished"):
        assert expected in shown
    assert fedtide.runs.main([str(tmp_path / "no-run")]) == 0
    shown = capsys.readouterr().out
    assert "no runs in" in shown
    assert "cells" not in shown
    (tmp_path / "no-run" / "cells").mkdir()
    assert fedtide.runs.main([str(tmp_path / "no-run")]) == 0
    assert "therunsofcomparisonsarein" in "".join(capsys.readouterr().out.split())
    assert fedtide.runs.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere: No such file or directory" in capsys.readouterr().err


def test_only_old_finished_runs_are_deleted(run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Never the newest, one that did not finish, one at work, or what a link leads to."""
    summary = (run / "summary.json").read_text()
    for name in ("old", "interrupted", "killed", "resumed"):
        shutil.copytree(run, tmp_path / name)
    (tmp_path / "interrupted" / "summary.json").write_text(
        summary.replace('"interrupted": false', '"interrupted": true')
    )
    (tmp_path / "killed" / "summary.json").unlink()
    for file in tmp_path.rglob("*"):
        days = 30 if "resumed" in file.parts else 20
        os.utime(file, (0, time.time() - days * 86400))
    target = shutil.move(run, tmp_path.with_name(f"{tmp_path.name}-elsewhere"))
    (tmp_path / "link").symlink_to(target)
    shutil.copytree(target, tmp_path / "newest", copy_function=shutil.copy)  # now
    before = {path.name for path in tmp_path.iterdir()}

    def prune(*flags: str, answer: str = "") -> int:
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        return fedtide.runs.main([str(tmp_path), "--prune", *flags])

    for wrong in ([], ["--keep=0"], ["--older-than=-1"]):
        with pytest.raises(SystemExit, match="2"):
            prune(*wrong)
    assert [prune("--keep=1", answer=answer) for answer in ("", "n\n")] == [1, 1]
    assert prune("--older-than=31") == 0
    assert "nothing to delete" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == before
    with (tmp_path / "resumed" / "metrics.jsonl").open() as file:
        lock(file, tmp_path / "resumed")  # as the process that goes on with it
        assert prune("--keep=1", answer="y\n") == 1
    shown = capsys.readouterr()
    assert "delete 2 run folders, " in shown.out
    assert "another process runs in this folder" in shown.err
    assert before - {path.name for path in tmp_path.iterdir()} == {"old"}
    assert read_run(target).status == "finished"
    assert prune("--older-than=1", "--yes") == 0
    assert before - {path.name for path in tmp_path.iterdir()} == {"old", "resumed"}


BAD_LINES = {
    "torn": b'{"round": 1, "active": [0,\n',
    "deep": b"[" * 50_000 + b"\n",
    "a huge round": b'{"round": ' + b"9" * 5000 + b"}\n",
    "no clients": b'{"round": 1, "active": 7}\n',
    "no seconds": b'{"round": 1, "seconds": {"select": "x"}}\n',
    "not UTF-8": b"\xff\xfe{\n",
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_that_is_not_a_record_is_skipped_and_named(run: Path, kind: str, caplog: Any) -> None:
    content = lines(run)
    (run / "metrics.jsonl").write_bytes(b"".join([*content[:2], BAD_LINES[kind], *content[2:]]))
    assert [record["round"] for record in records_in(run, lenient=True)] == [0, 1, 2, 3]
    assert f"{run / 'metrics.jsonl'}, line 3: " in caplog.text
    assert len(caplog.text) < 1000
    with pytest.raises(ValueError, match="line 3"):
        [*records_in(run)]
    caplog.clear()
    (run / "metrics.jsonl").write_bytes(b"".join([*content, BAD_LINES[kind][:-1]]))
    assert len([*records_in(run, lenient=True)]) == 4
    assert not caplog.text  # the last line of a run that was cut off


@pytest.mark.parametrize("left", [0, 2])
def test_records_that_are_missing_are_named(run: Path, left: int, caplog: Any) -> None:
    (run / "metrics.jsonl").write_bytes(b"".join(lines(run)[:left]))
    assert len(read_run(run, records=True).records) == left
    assert f"{run}: metrics.jsonl lacks some of 3 rounds" in caplog.text


def test_clients_of_other_projects_have_names_and_may_not_report_steps(run: Path) -> None:
    record = {"round": 4, "selected": ["a", 1], "active": ["a"], "steps": [None]}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    assert [*records_in(run)][-1] == [*records_in(run, lenient=True)][-1] == record


def test_a_long_line_is_not_read(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reader, "MAX_LINE", 1 << 20)
    with (run / "metrics.jsonl").open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 5: longer than 1 MiB"):
        [*records_in(run, lenient=True)]


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "clients.json"])
def test_files_of_other_kinds(run: Path, name: str, capsys: Any) -> None:
    """The report is made from the rest, or one line says why not; nothing waits."""
    file = run / name
    for kind in ("pipe", "folder", "device", b"", bytes(range(256)), b'{"a":' * 5000):
        file.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "folder":
            file.mkdir()
        elif kind == "device":
            file.symlink_to("/dev/zero")
        else:
            file.write_bytes(kind)
        code = report([str(run), "--output", str(run.parent / "page.html")])
        assert code in (0, 2)
        assert len(capsys.readouterr().err.splitlines()) == (code == 2)
        assert fedtide.runs.main([str(run.parent)]) == 0
        if kind == "folder":
            file.rmdir()


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**18),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40)
@given(data=st.data())
def test_any_content_is_read_or_refused(run: Path, data: st.DataObject) -> None:
    summary, record = json.loads((run / "summary.json").read_text()), json.loads(lines(run)[2])
    for content in (summary, record):
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(VALUES)
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_bytes(b"".join([*lines(run)[:2], json.dumps(record).encode() + b"\n"]))
    try:
        History.of(records_in(run, lenient=True))
        runs = find_runs(run.parent)
        fedtide.runs.table_of(runs, {run.path: fedtide.runs.usage_of(run.path) for run in runs})
    except ValueError as error:
        assert str(run) in str(error)  # noqa: PT017


def test_a_comparison_reads_only_the_cells_beside_it(run: Path, tmp_path: Path) -> None:
    """Nothing of other folders is read, and nothing is written there."""
    elsewhere = shutil.copytree(run, tmp_path / "elsewhere")
    before = sorted(elsewhere.iterdir())
    compared = tmp_path / "runs" / "compare-x"
    compared.mkdir(parents=True)
    for folder in ("..", "", 5, None, ["x"], "../../elsewhere", "cells/..", str(elsewhere)):
        (compared / "cells.json").write_text(json.dumps([{"folder": folder, "strategy": "x"}]))
        with pytest.raises(ValueError, match=r"is not a cell|no run of this comparison is finished"):
            read_subject([compared])
    assert sorted(elsewhere.iterdir()) == before


def stored(file: Path, header: bytes, times: int = 1) -> None:
    """Write an .npz file whose array, of a header and 1,000 bytes, the directory lists several times."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("arr_0.npy", header + bytes(1000))
        for number in range(1, times):
            again = copy(archive.filelist[0])
            again.filename = f"arr_{number}.npy"
            archive.filelist.append(again)


def npy_header(length: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (length,)})
    return file.getvalue()


BOMBS: dict[str, tuple[Any, str]] = {
    "compressed": (lambda file: np.savez_compressed(file, np.zeros(10**8, np.uint8)), "it is compressed"),
    "listed twice": (lambda file: stored(file, npy_header(1000), 100), "its arrays are larger than the file"),
    "a large header": (lambda file: stored(file, npy_header(10**12)), "arr_0.npy is shorter than its header"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_weights_larger_than_their_file_are_not_read(run: Path, kind: str) -> None:
    """They could be a thousand times as large; no memory is allocated for them."""
    write, says = BOMBS[kind]
    write(run / "weights.npz")
    loaded = fedtide.load(run)
    assert isinstance(loaded, fedtide.Run)
    tracemalloc.start()
    for read in (partial(read_arrays, run / "weights.npz"), lambda: loaded.weights, loaded.model):
        with pytest.raises(ValueError, match=says):
            read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20


def test_weights_of_another_model_are_refused(run: Path) -> None:
    """A single number would fit any tensor."""
    with np.load(run / "weights.npz") as arrays:
        np.savez(run / "ones.npz", *(np.ones(1, np.float32) for _ in arrays))
    (run / "ones.npz").rename(run / "weights.npz")
    with pytest.raises(ValueError, match=r"weights\.npz does not fit the model of config\.toml"):
        fedtide.load(run).model()  # type: ignore[union-attr]


def test_a_link_leads_nothing_outside(run: Path, tmp_path: Path) -> None:
    """Whatever a run folder of somebody else's has in the place of what is written."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    for name in ("report.html", ".report.html", "clients.json", ".clients.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(victim)
    assert report([str(run)]) == 0
    assert victim.read_text() == "untouched"
    assert not (run / "report.html").is_symlink()
