"""Run folders that somebody has changed, as input of reports and lists: refused in one line, or told."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flexfl.runs
import sim
from flexfl.ground.files import read_arrays
from flexfl.report import records
from flexfl.report.__main__ import main as report
from flexfl.report.reading import read_run, read_subject

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


BAD_LINES = {
    "torn": b'{"round": 1, "active": [0,\n',
    "deep": b"[" * 50_000 + b"\n",
    "deep object": b'{"round": 1, "x": ' + b"[" * 100 + b"]" * 100 + b"}\n",
    "no object": b"[1, 2]\n",
    "no round": b'{"loss": 1}\n',
    "a huge round": b'{"round": ' + b"9" * 5000 + b"}\n",
    "no clients": b'{"round": 1, "active": 7}\n',
    "negative clients": b'{"round": 1, "active": [-1]}\n',
    "no seconds": b'{"round": 1, "seconds": {"select": "x"}}\n',
    "no events": b'{"round": 1, "events": ["x"]}\n',
    "NUL": b"\0\0\0\n",
    "not UTF-8": b"\xff\xfe{\n",
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_line_that_is_no_record_is_left_out_and_named(run: Path, kind: str, caplog: Any) -> None:
    content = lines(run)
    (run / "metrics.jsonl").write_bytes(b"".join([*content[:2], BAD_LINES[kind], *content[2:]]))
    assert [record["round"] for record in records.records_of(run)] == [0, 1, 2, 3]
    assert f"{run / 'metrics.jsonl'}, line 3: " in caplog.text
    assert len(caplog.text) < 1000
    caplog.clear()
    (run / "metrics.jsonl").write_bytes(b"".join([*content, BAD_LINES[kind][:-1]]))
    assert len(records.records_of(run)) == 4
    assert not caplog.text  # the last line of a run that was cut off


def test_a_long_line_is_not_read(run: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(records, "MOST_LINE", 1 << 20)
    with (run / "metrics.jsonl").open("ab") as file:
        file.truncate(2**40)
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 5: longer than 1 MiB"):
        records.records_of(run)
    assert time.monotonic() - start < 5


FILES = ("config.toml", "metrics.jsonl", "summary.json", "clients.json", "weights.npz")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "empty", "noise", "deep"])
@pytest.mark.parametrize("name", FILES)
def test_files_that_are_none(run: Path, name: str, kind: str, capsys: Any) -> None:
    """The report is made of what is left, or one line says why not; nothing waits."""
    file = run / name
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes({"empty": b"", "noise": bytes(range(256)), "deep": b'{"a":' * 5000}[kind])
    code = report([str(run), "--output", str(run.parent / "page.html")])
    shown = capsys.readouterr()
    assert code in (0, 2)
    assert len(shown.err.splitlines()) == (code == 2)
    assert flexfl.runs.main([str(run.parent)]) == 0


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(10**18),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_any_content_is_read_or_refused(run: Path, data: st.DataObject) -> None:
    summary, record = json.loads((run / "summary.json").read_text()), json.loads(lines(run)[2])
    for content in (summary, record):
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(VALUES)
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_bytes(b"".join([*lines(run)[:2], json.dumps(record).encode() + b"\n"]))
    try:
        read_run(run)
        records.records_of(run)
        flexfl.runs.table_of(flexfl.runs.find_runs(run.parent))
    except ValueError as error:
        assert str(run) in str(error)  # noqa: PT017


@pytest.mark.parametrize("folder", ["..", "/", "", ".", 5, None, ["x"], "../../elsewhere", "cells/.."])
def test_a_comparison_reads_only_the_cells_beside_it(run: Path, tmp_path: Path, folder: Any) -> None:
    """Nothing of other folders is read, and nothing is written there."""
    elsewhere = shutil.copytree(run, tmp_path / "elsewhere")
    before = sorted(elsewhere.iterdir())
    compared = tmp_path / "runs" / "compare-x"
    compared.mkdir(parents=True)
    for named in (folder, str(elsewhere)):
        (compared / "cells.json").write_text(json.dumps([{"folder": named, "strategy": "x"}]))
        with pytest.raises(ValueError, match=r"is no cell|no run of this comparison is finished"):
            read_subject([compared])
    assert sorted(elsewhere.iterdir()) == before


def test_compressed_weights_are_not_read(run: Path) -> None:
    """They could be a thousand times as large as the file."""
    np.savez_compressed(run / "weights.npz", x=np.zeros(10**6))
    with pytest.raises(ValueError, match="it is compressed"):
        read_arrays(run / "weights.npz")


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
