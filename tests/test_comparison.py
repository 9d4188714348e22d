"""Comparisons: the results of their cells, what is done again and what is not, and what they write."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from flower import processes_of
from killed import saved_rounds
from waiting import wait_until

import fedtide
import sim
from fedtide.comparison.store import CellStore
from fedtide.config import Settings

ROOT = Path(sim.__file__).parent
SMALL = [
    *("--model", "logistic", "--num-clients", "6", "--num-rounds", "3", "--local-steps", "4"),
    *("--trace", "bernoulli:p=0.8", "--num-workers", "1", "--client-gpus", "0"),
]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a comparison in this process; the content of its JSON."""

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        assert sim.main([*SMALL, "--run-dir", str(tmp_path), "--json", *arguments]) == code
        shown: dict[str, Any] = json.loads(capsys.readouterr().out)
        return shown

    return call


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()}


# What runs, and what does not run again


def weights_of(folder: Path) -> str:
    digest: str = json.loads((folder / "summary.json").read_text())["weights_sha256"]
    return digest


def test_cells_are_single_runs_and_train_once(run: Any, tmp_path: Path, capsys: Any) -> None:
    first = run("--strategy", "fedavg", "mifa", "--seed", "0", "1")
    for strategy in ("fedavg", "mifa"):
        (cell,) = (tmp_path / "cells").glob(f"{strategy}-*-seed1-*")
        alone = ["--strategy", strategy, "--seed", "1", "--engine", "inline"]
        assert sim.main([*SMALL, *alone, "--run-dir", str(tmp_path / "one")]) == 0
        (single,) = (tmp_path / "one").glob(f"*-{strategy}-digits-*")
        assert json.loads((cell / "summary.json").read_text())["run_dir"] == str(cell)
        assert weights_of(cell) == weights_of(single)
        there, here = (
            [json.loads(line) | {"seconds": None} for line in (path / "metrics.jsonl").open()]
            for path in (cell, single)
        )
        assert there == here
    capsys.readouterr()
    before = files(tmp_path / "cells")
    more = run("--strategy", "fedavg", "mifa", "scheme-c", "--seed", "0", "1")
    after = files(tmp_path / "cells")
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) * 6 // 4
    assert (more["folder"], more["rows"][:2]) == (first["folder"], first["rows"])


def test_what_trains_again(run: Any, tmp_path: Path) -> None:
    """A cell that was cut off, and one of other defaults, which its name does not say; with --fresh, all."""
    first = run("--seed", "0", "1")
    (cell, other) = (next((tmp_path / "cells").glob(f"*-seed{seed}-*")) for seed in (0, 1))
    (cell / "summary.json").write_text('{"strategy": ')
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("learning-rate = 0.2", "learning-rate = 0.7"))
    assert run("--seed", "0", "1") == first
    assert json.loads((cell / "summary.json").read_text())["rounds"] == 3
    assert "learning-rate = 0.2" in (other / "config.toml").read_text()
    before = files(tmp_path / "cells")
    assert run("--seed", "0", "1", "--fresh") == first
    after = files(tmp_path / "cells")
    assert before.keys() == after.keys()
    assert all(after[path] > before[path] for path in before)


def test_a_cell_of_a_log_that_has_grown_runs_again(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("client,start,end\n0,0,900\n1,0,900\n")
    runs = ("--trace", f"recorded:file={log}", "--seed", "0", "1")
    first = run(*runs)
    assert run(*runs) == first
    log.write_text(log.read_text() + "2,900,1800\n")
    assert run(*runs)["rows"][0]["cost"]["uploads"] < first["rows"][0]["cost"]["uploads"]


@pytest.mark.parametrize("kept", [slice(-1), slice(None, None, 2)], ids=["the last", "every second"])
def test_a_cell_that_lacks_records_runs_again(
    kept: slice, run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a full disk or a partial copy leaves it."""
    first = run("--seed", "0", "1")
    cell, other = sorted((tmp_path / "cells").iterdir())
    records = (cell / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cell / "metrics.jsonl").write_text("".join(records[kept]))
    fedtide.load(cell)
    assert "metrics.jsonl lacks some of" in caplog.text
    before = files(other)
    assert run("--seed", "0", "1") == first
    assert len((cell / "metrics.jsonl").read_text().splitlines()) == len(records)
    assert files(other) == before


def test_cells_that_fail_and_those_of_another_version(run: Any, tmp_path: Path, capsys: Any) -> None:
    """The others have the accuracies on the members' own held-out examples, too."""
    arguments = ["--partition", "classes:m=2", "classes:m=11", "--seed", "0", "1", "--evaluate-clients", "2"]
    shown = run(*arguments, code=1)
    (row,) = shown["rows"]
    assert row["varied"] == {"partition": "classes:m=2"}
    assert 0 <= row["worst"]["mean"] <= row["tenth"]["mean"] < 1
    assert len(shown["failed"]) == 2
    assert all("m must be between 1 and the data's 10 classes" in r for r in shown["failed"].values())
    for config in (tmp_path / "cells").glob("*/config.toml"):
        config.write_text(config.read_text().replace('fedtide = "', 'fedtide = "9.'))
    assert sim.main([*SMALL, "--run-dir", str(tmp_path), *arguments]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "2 finished cells of version 9." in text
    assert "--fresh trains them again" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "fedavg", "mifa:weights=n"], "'weights'"),
        (["--seed", "0", "0"], "twice"),
        (["--seed", "0", "1", "--reach", "-1"], "reach is -1"),
        (["--seed", "0", "1", "--reach", "0.8", "los=1"], "evaluations have no 'los'"),
        (["--seed", "0", "1", "--stop-at", "accuracy=90"], "80 % is 0.8"),
        (["--reach", "0.8"], "reach, fresh and baseline"),
        (["--seed", "0", "1", "--show-trace", "always"], "one value"),
    ],
)
def test_bad_comparisons(arguments: list[str], message: str, capsys: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        sim.main([*SMALL, "--run-dir", str(tmp_path), *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_file_with_lists_and_tables(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text("seed = [0, 1]\n[[cell]]\nlocal-steps = 2\npaper = 12.5\n[[cell]]\nlocal-steps = 3\n")
    arguments = [argument for argument in SMALL if argument not in ("--local-steps", "4")]
    assert sim.main([*arguments, "--run-dir", str(tmp_path), "--config", str(file)]) == 0
    (folder,) = tmp_path.glob("compare-*")
    with (folder / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["local-steps"], row["runs"], row["paper"]) for row in rows] == [
        ("2", "2", "12.5"),
        ("3", "2", ""),
    ]
    assert len(json.loads((folder / "cells.json").read_text())) == 4


# On Ray, and signals


def until_a_cell_is_finished(process: subprocess.Popen[str], cells: Path) -> None:
    wait_until(lambda: [*cells.glob("[!.]*/summary.json")], process)


def test_of_two_processes_the_second_is_refused(run: Any, tmp_path: Path, capsys: Any) -> None:
    """Also where another comparison has one run in common; a process that was killed is in nobody's way."""
    runs = ["--partition", "iid", "--seed", "0", "1"]
    call = [sys.executable, sim.__file__, *SMALL, "--run-dir", str(tmp_path), "--num-rounds", "1000000"]
    with subprocess.Popen([*call, *runs], stdout=PIPE) as first:
        try:
            wait_until(lambda: [*tmp_path.glob("cells/.*/metrics.jsonl")])
            for same in (runs, ["--fresh", *runs]):
                with pytest.raises(SystemExit, match="2"):
                    sim.main([*call[2:], *same])
                (line,) = capsys.readouterr().err.splitlines()
                assert line.endswith("another process runs in this folder; wait until it has ended")
            other = ["--partition", "iid", "classes:m=11", "--num-rounds", "1000000"]
            sim.main([*call[2:], *other])
            assert "another process runs in this folder" in capsys.readouterr().out
            assert [*tmp_path.glob("cells/.*/metrics.jsonl")]
        finally:
            first.kill()


def test_what_a_full_disk_leaves_out_is_not_a_method_that_failed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be the worst in the ranking."""
    save = CellStore.save

    def full(store: CellStore, settings: Settings, files: Any) -> None:
        if settings.strategy == "mifa":
            raise OSError(28, "No space left on device")
        save(store, settings, files)

    monkeypatch.setattr(CellStore, "save", full)
    found = run("--strategy", "fedavg", "mifa", "--seed", "0", code=1)
    assert [*found["failed"].values()] == ["cannot be stored: No space left on device"]
    (folder,) = tmp_path.glob("compare-*")
    assert [lacking.failed for lacking in fedtide.load(folder).lacking] == [False]


def test_a_comparison_whose_folder_cannot_be_made(tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "place"
    place.write_text("a file")
    with pytest.raises(SystemExit, match="2"):
        sim.main([*SMALL, "--run-dir", str(place), "--seed", "0", "1"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"run-dir {place}: Not a directory")


@pytest.mark.slow
def test_a_signal_shows_what_is_finished_and_the_rest_goes_on_later(run: Any, tmp_path: Path) -> None:
    """Finished cells are left alone, and the one that was at work goes on from its last checkpoint."""
    arguments = ["--seed", *"012", "--num-rounds", "300", "--checkpoint-every", "10"]
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--json", "--run-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=PIPE, text=True, cwd=ROOT) as process:
        until_a_cell_is_finished(process, tmp_path / "cells")
        done = {f".{path.name}" for path in tmp_path.glob("cells/[!.]*")}
        # At once, as the run of the next cell is short.
        while not {path.name for path in tmp_path.glob("cells/.*") if saved_rounds(path)} - done:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate()
    assert process.returncode == 143
    found = json.loads(shown)
    assert found["interrupted"]
    (unfinished,) = (tmp_path / "cells").glob(".*")
    saved = max(saved_rounds(unfinished))
    records = (unfinished / "metrics.jsonl").read_text().splitlines()[: saved + 1]
    finished = {p: t for p, t in files(tmp_path / "cells").items() if unfinished not in p.parents}
    (row,) = found["rows"]
    assert 1 <= len(row["seeds"]) < 3
    assert len(finished) == 5 * len(row["seeds"])
    whole = run(*arguments)
    assert whole["rows"][0]["seeds"] == list(range(3))
    after = files(tmp_path / "cells")
    assert {path: after[path] for path in finished} == finished
    cell = unfinished.with_name(unfinished.name.removeprefix("."))
    assert (cell / "metrics.jsonl").read_text().splitlines()[: saved + 1] == records
    (other, *_) = finished
    assert {path.name for path in cell.iterdir()} == {path.name for path in other.parent.iterdir()}
    assert not unfinished.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_on_ray_a_cell_may_lose_its_process_once_and_a_signal_ends_the_comparison(tmp_path: Path) -> None:
    """The process of seed 0 dies twice: that cell has failed, and the others are not affected."""
    arguments = ["--strategy", "mimic", "--num-rounds", "600", "--checkpoint-every", "10"]
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--seed", *"012", "--num-workers", "2"]
    command += ["--json", "--run-dir", str(tmp_path)]  # the second number of workers counts
    env = {**os.environ, "FLWR_HOME": str(tmp_path)}
    killed = set[int]()
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT, env=env) as process:
        while len(killed) < 2 and process.poll() is None:
            time.sleep(0.01)
            for pid in {*processes_of(tmp_path)} - killed - {process.pid}:
                if _trains(pid, tmp_path / "cells", "seed0"):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        assert process.stderr
        assert any(line.startswith("failed: ") for line in process.stderr)
        until_a_cell_is_finished(process, tmp_path / "cells")
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate()
    assert process.returncode == 130
    found = json.loads(shown)
    assert found["interrupted"]
    reason = "its process died twice: WorkerCrashedError; rerun the command to continue"
    assert found["failed"] == {"mimic seed 0": reason}
    assert {*found["rows"][0]["seeds"]} <= {1, 2}


def _trains(pid: int, cells: Path, name: str) -> bool:
    """Whether a process writes to the folder of a cell, given by a part of its name, and has a checkpoint."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            path = entry.resolve()
            if cells in path.parents and name in str(path) and path.name == "metrics.jsonl":
                return bool(saved_rounds(path.parent))
    return False
