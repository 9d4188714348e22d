"""Comparisons: the results of their cells, what is done again and what is not, and what they write."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower import processes_of
from rich.console import Console

import sim
from flexfl.config.grid import cells
from flexfl.engine.comparison import compare as module
from flexfl.engine.comparison.results import Cost, cost_to_reach, cost_until, estimate, rows_of
from flexfl.engine.comparison.store import CellStore, FinishedCell
from flexfl.engine.comparison.tables import columns, comma_separated, latex, markdown, terminal

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


def test_a_cell_is_what_a_single_run_gives(run: Any, tmp_path: Path) -> None:
    run("--strategy", "fedavg", "mifa", "--seed", "0", "1")
    for strategy in ("fedavg", "mifa"):
        (cell,) = (tmp_path / "cells").glob(f"{strategy}-*-seed1-*")
        alone = [
            "--strategy",
            strategy,
            "--seed",
            "1",
            "--engine",
            "inline",
            "--run-dir",
            str(tmp_path / "one"),
        ]
        assert sim.main([*SMALL, *alone]) == 0
        (single,) = (tmp_path / "one").glob(f"*-{strategy}-digits-*")
        summaries = [json.loads((path / "summary.json").read_text()) for path in (cell, single)]
        assert summaries[0]["run_dir"] == str(cell)
        assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
        rounds = [
            [
                json.loads(line) | {"seconds": None}
                for line in (path / "metrics.jsonl").read_text().splitlines()
            ]
            for path in (cell, single)
        ]
        assert rounds[0] == rounds[1]


def test_finished_cells_are_left_alone(run: Any, tmp_path: Path) -> None:
    first = run("--strategy", "fedavg", "mifa", "--seed", "0", "1")
    before = files(tmp_path / "cells")
    again = run("--strategy", "fedavg", "mifa", "--seed", "0", "1")
    assert again == first
    assert files(tmp_path / "cells") == before
    more = run("--strategy", "fedavg", "mifa", "scheme-c", "--seed", "0", "1", "2")
    after = files(tmp_path / "cells")
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) * 9 // 4
    assert more["folder"] == first["folder"]
    assert [row["seeds"] for row in more["rows"]] == [[0, 1, 2]] * 3


def test_fresh_trains_all_again(run: Any, tmp_path: Path) -> None:
    first = run("--seed", "0", "1")
    before = files(tmp_path / "cells")
    assert run("--seed", "0", "1", "--fresh") == first
    after = files(tmp_path / "cells")
    assert before.keys() == after.keys()
    assert all(after[path] > before[path] for path in before)


def test_a_cell_that_was_cut_off_runs_again(run: Any, tmp_path: Path) -> None:
    first = run("--seed", "0", "1")
    cell = next((tmp_path / "cells").glob("*-seed1-*"))
    (cell / "summary.json").write_text('{"strategy": ')
    assert run("--seed", "0", "1") == first
    assert json.loads((cell / "summary.json").read_text())["rounds"] == 3


def test_a_cell_of_other_defaults_runs_again(run: Any, tmp_path: Path) -> None:
    """The name of its folder says what differs from the defaults, which may have been others then."""
    first = run("--seed", "0", "1")
    cell = next((tmp_path / "cells").glob("*-seed1-*"))
    config = (cell / "config.toml").read_text()
    (cell / "config.toml").write_text(config.replace("learning-rate = 0.2", "learning-rate = 0.7"))
    assert run("--seed", "0", "1") == first
    assert "learning-rate = 0.2" in (cell / "config.toml").read_text()


def test_a_cell_of_a_log_that_has_grown_runs_again(run: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("client,start,end\n0,0,900\n1,0,900\n")
    runs = ("--trace", f"recorded:file={log}", "--seed", "0", "1")
    first = run(*runs)
    assert run(*runs) == first
    log.write_text(log.read_text() + "2,900,1800\n")
    assert run(*runs)["rows"][0]["cost"]["uploads"] < first["rows"][0]["cost"]["uploads"]


def test_fairness_towards_clients(run: Any) -> None:
    """The worst client and the tenth percentile, of the accuracies on the members' own hold-outs."""
    shown = run("--seed", "0", "1", "--evaluate-clients", "2", "--partition", "classes:m=2")
    (row,) = shown["rows"]
    assert 0 <= row["worst"]["mean"] <= row["tenth"]["mean"] < 1


def test_cells_of_another_version_are_named(run: Any, tmp_path: Path, capsys: Any) -> None:
    run("--seed", "0", "1")
    for config in (tmp_path / "cells").glob("*/config.toml"):
        config.write_text(config.read_text().replace('flexfl = "', 'flexfl = "9.'))
    assert sim.main([*SMALL, "--run-dir", str(tmp_path), "--seed", "0", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 finished cells of version 9." in shown
    assert "--fresh trains them anew" in shown


def test_a_cell_that_fails_is_named_and_the_others_go_on(run: Any) -> None:
    shown = run("--partition", "iid", "classes:m=11", "--seed", "0", "1", code=1)
    assert [row["varied"] for row in shown["rows"]] == [{"partition": "iid"}]
    assert len(shown["failed"]) == 2
    assert all("m must be between 1 and the data's 10 classes" in r for r in shown["failed"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "fedavg", "nonesuch"], "unknown strategy 'nonesuch'"),
        (["--strategy", "fedavg", "mifa:weights=n"], "mifa has no option 'weights'"),
        (["--seed", "0", "0"], "occurs twice"),
        (["--seed", "0", "1", "--reach", "-1"], "reach is -1.0; it must be a number of at least 0"),
        (["--reach", "0.8"], "reach and fresh belong to a comparison"),
        (["--seed", "0", "1", "--show-trace", "always"], "give one value for each setting"),
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


@pytest.mark.slow
def test_on_ray_the_same_cells(run: Any, tmp_path: Path) -> None:
    arguments = ["--strategy", "fedavg", "mimic", "--seed", "0", "1"]
    here = run(*arguments)
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--json"]
    command[command.index("--num-workers") + 1] = "2"
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "ray")], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    there = json.loads(done.stdout)
    assert there["rows"] == here["rows"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_and_gone_on(run: Any, tmp_path: Path, number: int, code: int) -> None:
    """Finished cells are left alone, and the one that was at work goes on from its last checkpoint."""
    arguments = ["--seed", *map(str, range(3)), "--num-rounds", "300", "--checkpoint-every", "10"]
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--json", "--run-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        end = time.monotonic() + 120
        while not list(tmp_path.glob("cells/[!.]*/summary.json")) and time.monotonic() < end:
            time.sleep(0.05)
        done = {f".{path.name}" for path in tmp_path.glob("cells/[!.]*")}
        while time.monotonic() < end:
            saved = {path.parents[1].name for path in tmp_path.glob("cells/.*/checkpoint/round-*")}
            if saved - done:
                break
        os.kill(process.pid, number)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == code
    found = json.loads(shown)
    assert found["interrupted"]
    (unfinished,) = (tmp_path / "cells").glob(".*")
    saved = max(int(path.name.split("-")[1]) for path in unfinished.glob("checkpoint/round-*"))
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
    assert {path.name for path in cell.iterdir()} == {
        path.name for path in next(iter(finished)).parent.iterdir()
    }
    assert not unfinished.exists()


@pytest.mark.slow
def test_interrupted_on_ray(run: Any, tmp_path: Path) -> None:
    """Shows what is finished, also if the signal comes while the driver waits for Ray."""
    arguments = ["--seed", *map(str, range(4)), "--num-rounds", "1000"]
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--json", "--run-dir", str(tmp_path)]
    command[command.index("--num-workers") + 1] = "2"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        end = time.monotonic() + 120
        while not list(tmp_path.glob("cells/[!.]*/summary.json")) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(shown)
    assert found["interrupted"]
    (row,) = found["rows"]
    assert 1 <= len(row["seeds"]) < 4
    assert run(*arguments)["rows"][0]["seeds"] == list(range(4))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_cell_whose_process_dies_goes_on_once(tmp_path: Path) -> None:
    """That of seed 0 dies twice and has failed, that of seed 1 once."""
    arguments = ["--seed", "0", "1", "--num-rounds", "1500", "--checkpoint-every", "10"]
    command = [sys.executable, "sim.py", *SMALL, *arguments, "--json", "--run-dir", str(tmp_path)]
    command[command.index("--num-workers") + 1] = "2"
    env = {**os.environ, "FLWR_HOME": str(tmp_path)}
    to_kill, killed = {"seed0": 2, "seed1": 1}, set[int]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env) as process:
        while any(to_kill.values()) and process.poll() is None:
            time.sleep(0.01)
            for pid in {*processes_of(tmp_path)} - killed - {process.pid}:
                for name in [name for name, kills in to_kill.items() if kills]:
                    if _trains(pid, tmp_path / "cells", name):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
                        to_kill[name] -= 1
        shown, _ = process.communicate(timeout=120)
    assert not any(to_kill.values())
    assert json.loads(shown)["rows"][0]["seeds"] == [1]
    assert process.returncode == 1


def _trains(pid: int, cells: Path, name: str) -> bool:
    """Whether a process writes to the folder of a cell, given by a part of its name, and has a checkpoint."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            path = entry.resolve()
            if cells in path.parents and name in str(path):
                return bool([*path.parent.glob("checkpoint/round-*")])
    return False


# Numbers


def record(t: int, accuracy: float | None, active: int = 2, **more: Any) -> dict[str, Any]:
    shown = {"round": t, "active": [*range(active)], "bytes_up": 1_000_000, "bytes_down": 3_000_000, **more}
    return shown if accuracy is None else shown | {"accuracy": accuracy}


def finished(*accuracies: float | None, **more: Any) -> FinishedCell:
    records = [
        {"round": 0, "accuracy": 0.1},
        *(record(t, a, **more) for t, a in enumerate(accuracies, start=1)),
    ]
    return FinishedCell({"final": {"accuracy": accuracies[-1]}}, records, "0")


def test_intervals_of_student() -> None:
    """Three values 1, 2, 3: deviation 1, t = 4.3027 with two degrees of freedom."""
    assert estimate([1, 2, 3]) == pytest.approx((2, 1, 4.302653 / math.sqrt(3)), rel=1e-6)
    np.testing.assert_equal(estimate([5.0]), (5.0, math.nan, math.nan))
    np.testing.assert_equal(estimate([math.nan]), (math.nan, math.nan, math.nan))


def test_intervals_cover_the_mean() -> None:
    """95 % of the intervals of normal samples contain the mean."""
    rng = np.random.default_rng(0)
    samples = (estimate(rng.normal(size=4).tolist()) for _ in range(4000))
    assert np.mean([abs(e.mean) <= e.margin for e in samples]) == pytest.approx(0.95, abs=0.01)


def test_what_it_took_to_reach_a_value() -> None:
    run = finished(0.5, None, 0.8, 0.7, virtual_seconds=60)
    assert cost_to_reach(run, 0.75) == Cost(3, 6, 3.0, 9.0, 60)
    assert cost_to_reach(run, 0.5) == Cost(1, 2, 1.0, 3.0, 60)
    assert cost_to_reach(run, 0.81) is None
    np.testing.assert_equal(cost_until([record(1, 0.5)], 1), Cost(1, 2, 1.0, 3.0, math.nan))


def test_lower_is_better_for_errors() -> None:
    told = {"name": "mean_absolute_error", "higher_is_better": False, "is_share": False}
    records = [{"round": t, "mean_absolute_error": e} for t, e in enumerate([9.0, 7.0, 4.0, 5.0])]
    run = FinishedCell({"final": {"mean_absolute_error": 5.0}, "metric": told}, records, "0")
    reached = cost_to_reach(run, 4.5)
    assert reached is not None
    assert reached.rounds == 2
    assert cost_to_reach(run, 3.0) is None
    (row,) = rows_of(cells({"seed": [0]}, "here"), {cells({"seed": [0]}, "here")[0].settings: run}, reach=4.5)
    shown = columns(row, 4.5)
    assert (shown["mean absolute error"], shown["last 10"], shown["rounds to 4.5"]) == ("5", "5.333", "2")
    assert "mean_absolute_error" in comma_separated([row]).splitlines()[0].split(",")


def test_differences_are_paired() -> None:
    """By seed, to the first strategy under the same other settings; over the seeds that both have."""
    grid = cells({"strategy": ["fedavg", "mifa"], "trace": ["always", "phones"], "seed": [0, 1]}, "here")
    scores = iter([0.5, 0.6, 0.1, 0.2, 0.7, 0.9, 0.4])  # one cell is not finished
    results = {cell.settings: finished(score) for cell, score in zip(grid, scores, strict=False)}
    rows = rows_of(grid, results, reach=0.6)
    assert [tuple(row.varied.values()) for row in rows] == [
        ("fedavg", "always"),
        ("fedavg", "phones"),
        ("mifa", "always"),
        ("mifa", "phones"),
    ]
    assert [row.difference and round(row.difference.mean, 9) for row in rows] == [None, None, 0.25, 0.3]
    assert rows[2].difference is not None
    assert rows[2].difference.deviation == pytest.approx(np.std([0.2, 0.3], ddof=1))
    assert [[cost is not None for cost in row.reached] for row in rows] == [
        [False, True],
        [False, False],
        [True, True],
        [False],
    ]


def test_the_last_evaluations_are_those_after_training_began() -> None:
    (row,) = rows_of(
        cells({"seed": [0]}, "here"), {cells({"seed": [0]}, "here")[0].settings: finished(0.5, 0.7)}
    )
    assert row.last.mean == pytest.approx(0.6)


def test_tables_escape_what_their_formats_use() -> None:
    rows = [{"trace": "a|b_c", "accuracy %": "1 ± 2"}, {"trace": "x & y"}]
    assert markdown(rows).splitlines()[2:] == ["| a\\|b_c | 1 ± 2 |", "| x & y |  |"]
    assert r"a|b\_c & 1 $\pm$ 2 \\" in latex(rows)
    assert r"x \& y &  \\" in latex(rows)
    assert r"accuracy \%" in latex(rows)


def test_the_terminal_shows_names_as_they_are(tmp_path: Path) -> None:
    """Brackets are no markup."""
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    found = module.tables.terminal([{"run-dir": "[red]x[/red]"}], "t", 80)
    console.print(found)
    assert "[red]x[/red]" in console.export_text()


def test_two_comparisons_finish_the_same_cell(tmp_path: Path) -> None:
    """Their files are the same: the second ones are dropped, or take their place."""
    store, settings = CellStore(str(tmp_path)), cells({"seed": [0]}, "here")[0].settings
    content = {
        "summary.json": b'{"rounds": 1}',
        "metrics.jsonl": b'{"round": 0}\n',
        "config.toml": b"[versions]\n",
    }
    store.save(settings, content)
    store.save(settings, content)
    found = store.load(settings)
    assert found is not None
    assert found.records == [{"round": 0}]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [store.path(settings).name]


@pytest.mark.parametrize("width", [80, 90, 200])
def test_no_cell_of_the_terminal_is_broken(width: int) -> None:
    """Where it is narrow, columns are left out."""
    numbers = {
        "accuracy %": "44.37 ± 0.59",
        "95 % interval": "39.02 to 49.72",
        "worst client %": "58.77 ± 11.15",
    }
    row = {"strategy": "flwr.server.strategy.FedAdam:eta=0.05", **numbers, "to first": "+0.72 ± 7.23"}
    file = io.StringIO()
    Console(file=file, width=width).print(terminal([row], "1 run", width))
    (line,) = [line for line in file.getvalue().splitlines() if "FedAdam" in line]
    assert ("39.02 to 49.72" in line) == (width > 80)
    assert ("58.77 ± 11.15" in line) == (width > 90)
    assert "44.37 ± 0.59" in line
    assert "+0.72 ± 7.23" in line
