"""Reports: numbers by hand, what is kept of the clients, and what becomes of folders that are not whole."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from clients.environment import make_trace
from flexfl.config import Settings
from flexfl.engine.run import simulate
from flexfl.report.__main__ import main
from flexfl.report.client_numbers import read_numbers
from flexfl.report.curves import band_of
from flexfl.report.history import history_of, plain_reason
from flexfl.report.page import embedded
from flexfl.report.participation import of_run, states_of
from flexfl.report.reading import read_subject
from flexfl.report.states import COLUMNS, ROWS, State, StateGrid
from flexfl.report.update_shares import update_shares
from traces import RoundAvailability

SMALL = [
    *("--model", "logistic", "--num-clients", "6", "--num-rounds", "4", "--local-steps", "4"),
    *("--client-gpus", "0", "--num-workers", "1"),
]
ONE = [*SMALL, "--engine", "inline", "--trace", "bernoulli:p=0.8+pools:first=8"]


def record(t: int, **more: Any) -> dict[str, Any]:
    return {"round": t, "selected": [], "active": [], "steps": [], "failed": {}, "bytes_up": 0, **more}


# Numbers


def test_the_states_of_clients_by_hand() -> None:
    told = record(
        5,
        selected=[2, 3, 4, 5, 6, 7],
        active=[6, 7, 8],
        steps=[4, 3, 4],
        failed={
            "2": "dropped in mid-round",
            "3": "reply lost",
            "4": "not finite",
            "5": "no reply by the end of the round",
        },
        at_work=[9],
    )
    member, online = np.ones(11, bool), np.ones(11, bool)
    member[0] = online[0] = online[1] = False
    now = RoundAvailability(member, online, np.ones(11, np.float32))
    known = ["ABSENT", "OFFLINE", "DROPPED", "LOST", "REJECTED", "LATE", "COMPLETE", "INCOMPLETE", "COMPLETE"]
    assert [State(s).name for s in states_of(told, now, 11, 4)] == [*known, "LATE", "NOT_SELECTED"]
    alone = [State(s).name for s in states_of(told, None, 11, 4)]
    assert alone == ["NOT_SELECTED", "NOT_SELECTED", *known[2:], "LATE", "NOT_SELECTED"]


def test_without_the_trace_the_records_tell() -> None:
    records = [record(0), record(1, selected=[0, 1], active=[1], steps=[10], failed={"0": "reply lost"})]
    settings = Settings(num_clients=4)
    found = of_run(records, settings, "no such file")
    assert found is not None
    assert found.grid.states.T.tolist() == [
        [State.LOST, State.COMPLETE, State.NOT_SELECTED, State.NOT_SELECTED]
    ]
    assert np.isnan(found.online).all()
    assert found.took_part == pytest.approx([0.25])
    assert "no such file" in found.notes[0]


def test_states_that_share_a_cell() -> None:
    clients, rounds = 2 * ROWS, 3 * COLUMNS
    grid = StateGrid(clients, range(1, rounds + 1))
    for t in range(1, rounds + 1):
        states = np.full(clients, State.OFFLINE, np.int8)
        states[1::2] = State.COMPLETE
        states[-2:] = State.ABSENT if t <= 3 else State.DROPPED
        grid.add(t, states)
    picture = grid.picture()
    assert picture.states.shape == picture.took_part.shape == (ROWS, COLUMNS)
    assert picture.took_part[0, 0] == 0.5
    assert math.isnan(picture.took_part[-1, 0])
    assert picture.states[-1].tolist() == [State.ABSENT] + [State.DROPPED] * (COLUMNS - 1)
    assert (picture.clients[1], picture.rounds[1], picture.is_exact) == ((2, 3), (4, 6), False)
    sorted_states = grid.picture(grid.by_availability()).states[:, 5].tolist()
    assert sorted_states == sorted(sorted_states, reverse=True)[:ROWS]


def test_curves_of_seeds() -> None:
    """Two seeds, evaluated every second round; the second one ended early."""
    runs = [
        [record(t, active=[0] * (t > 0), loss=1.0 * s, accuracy=a) for t, a in enumerate(scores)]
        for s, scores in ((1, [0.1, None, 0.5, None, 0.7]), (3, [0.1, None, 0.3]))
    ]
    band = band_of([history_of(records) for records in runs], "score", 10)
    assert band is not None
    assert band.x["rounds"].tolist() == band.x["uploads"].tolist() == [0, 2, 4]
    np.testing.assert_allclose(
        [band.low, band.mean, band.high], [[0.1, 0.3, 0.7], [0.1, 0.4, 0.7], [0.1, 0.5, 0.7]]
    )
    merged = band_of([history_of(records) for records in runs], "score", 1)
    assert merged is not None
    assert (merged.low[0], merged.high[0], merged.mean[0]) == pytest.approx((0.1, 0.7, 0.4))
    assert np.isnan(band.x["seconds"]).all()


def test_events_and_failures() -> None:
    departure = {"event": "departure", "client": 3, "objective": "exclude", "gamma": 0.25}
    records = [
        record(1, learning_rate=0.1, failed={"1": "7 steps of 5", "2": "9 steps of 5"}),
        record(2, learning_rate=0.2, events=[departure], failed={"1": "reply lost"}),
    ]
    history = history_of(records)
    assert [(e.round, e.kind, e.client) for e in history.events] == [
        (2, "departure, its part dropped", 3),
        (2, "learning rate restarts", None),
    ]
    assert "gamma 0.25" in history.events[0].details
    assert history.failures == {"… steps of …": {1: 2}, "reply lost": {2: 1}}
    assert plain_reason("1e-5 is less than 2.5") == "… is less than …"


def test_json_cannot_end_its_script() -> None:
    text = embedded({"a": "</script><!--", "b": float("nan")})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {"a": "</script><!--", "b": None}


# What is kept of the clients


def test_what_is_kept_of_the_clients(tmp_path: Path) -> None:
    settings = Settings(
        strategy="fedavg",
        model="logistic",
        trace="bernoulli:p=0.6",
        engine="inline",
        num_clients=5,
        num_rounds=6,
        sizes="pareto:index=1",
        evaluate_clients=6,
        run_dir=str(tmp_path),
    )
    experiment, folder = simulate(settings)
    assert main([str(folder.path)]) == 0
    kept = read_numbers(folder.path)
    assert kept is not None
    sizes = experiment.data.sizes
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert kept.rates == pytest.approx([sum(k in r.get("active", []) for r in lines) / 6 for k in range(5)])
    assert kept.data_shares == pytest.approx(sizes / sizes.sum())
    np.testing.assert_allclose(
        kept.update_shares, update_shares(settings, sizes, make_trace(settings)), rtol=1e-5
    )
    np.testing.assert_allclose(kept.scores, experiment.evaluator.by_client(np.arange(5)), atol=1e-6)
    assert kept.scores_on == "its held-out examples"
    assert kept.notes == []
    before = (folder.path / "clients.json").stat().st_mtime_ns
    assert main([str(folder.path)]) == 0
    assert (folder.path / "clients.json").stat().st_mtime_ns == before
    (folder.path / "clients.json").unlink()  # as in the folder of an older version
    assert main([str(folder.path)]) == 0
    assert read_numbers(folder.path) == kept


def test_what_cannot_be_computed_is_said(tmp_path: Path) -> None:
    central = [*ONE, "--run-dir", str(tmp_path), "--strategy", "sequential-sgd"]
    assert sim.main(central) == 0
    (folder,) = tmp_path.iterdir()
    assert "no clients whose updates could be told apart" in (folder / "report.html").read_text()
    (folder / "clients.json").unlink()
    (folder / "weights.npz").write_bytes((folder / "weights.npz").read_bytes()[:100])
    assert main([str(folder)]) == 0
    assert "no numbers of clients for a run: File is not a zip file" in (folder / "report.html").read_text()
    (folder / "weights.npz").unlink()
    assert main([str(folder)]) == 0
    assert "weights.npz" in (folder / "report.html").read_text()
    config = (folder / "config.toml").read_text().replace('task = "digits"', 'task = "mnist"')
    config = config.replace('data-dir = "data"', 'data-dir = "nowhere"').replace("bernoulli:p=0.8", "labels")
    (folder / "config.toml").write_text(config)
    assert main([str(folder)]) == 0
    text = (folder / "report.html").read_text()
    assert "the data of mnist are not in nowhere" in text
    assert "it depends on the data, which are not in nowhere" in text


# Folders


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    base = tmp_path_factory.mktemp("runs")
    assert sim.main([*ONE, "--run-dir", str(base)]) == 0
    (folder,) = base.iterdir()
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison of four runs, with numbers of a paper."""
    base = tmp_path_factory.mktemp("compared")
    file = base / "grid.toml"
    file.write_text(
        'seed = [0, 1]\n[[cell]]\nstrategy = "fedavg"\npaper = 43.21\n[[cell]]\nstrategy = "mifa"\n'
    )
    assert sim.main([*SMALL, "--config", str(file), "--reach", "0.2", "--run-dir", str(base)]) == 0
    (folder,) = base.glob("compare-*")
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run folder."""
    return Path(shutil.copytree(run, tmp_path / "copied"))


def test_a_run_leaves_a_report(run: Path, capsys: Any) -> None:
    text = (run / "report.html").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert f"{100 * summary['final']['accuracy']:.2f}" in text
    for name in (
        "Accuracy and loss",
        "Participation",
        "Bias",
        "Seconds by phase",
        "bernoulli:p=0.8+pools:first=8",
    ):
        assert name in text
    assert not [address for address in ("src=", "<link") if address in text.split("<script>")[0]]
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")


def test_a_comparison_leaves_a_report_and_its_cells_none(compared: Path) -> None:
    text = (compared / "report.html").read_text()
    for line in (compared / "table.md").read_text().splitlines()[2:]:
        for cell in filter(None, (cell.strip() for cell in line.split("|"))):
            assert f">{cell}</td>" in text, cell
    assert "the paper has 43.21" in text
    assert ">rounds to 20%<" in text
    cells = [*(compared.parent / "cells").iterdir()]
    assert len(cells) == 4
    assert all((cell / "clients.json").exists() and not (cell / "report.html").exists() for cell in cells)
    assert main([str(cells[0]), "--output", str(compared / "cell.html")]) == 0
    assert (compared / "cell.html").exists()


def test_no_report(tmp_path: Path) -> None:
    assert sim.main([*ONE, "--no-report", "--run-dir", str(tmp_path / "one")]) == 0
    (folder,) = (tmp_path / "one").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.toml", "metrics.jsonl", "weights.npz", "summary.json", "checkpoint"}
    several = [*SMALL, "--seed", "0", "1", "--run-dir", str(tmp_path)]
    assert sim.main([*several, "--no-report"]) == 0
    (compared,) = tmp_path.glob("compare-*")
    assert not (compared / "report.html").exists()
    cells = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/*")}
    assert sim.main(several) == 0
    text = (compared / "report.html").read_text()
    assert "no numbers of clients for 2 runs: not computed yet" in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/*")} == cells


def test_several_folders(run: Path, compared: Path, tmp_path: Path, capsys: Any) -> None:
    moved = Path(shutil.copytree(compared.parent, tmp_path / "moved")) / compared.name
    shutil.rmtree(next((tmp_path / "moved" / "cells").glob("mifa-*-seed1-*")))
    index = (moved / "cells.json").read_text()
    (moved / "cells.json").write_text(index.replace(str(compared.parent), "where/they/were"))
    subject = read_subject([run, moved])
    assert [found.label.split(" · ")[0] for found in subject.runs] == ["scheme-c", "fedavg", "fedavg", "mifa"]
    assert [set(found.varied) for found in subject.runs] == [{"strategy", "trace", "seed"}] * 4
    assert [found.paper for found in subject.runs] == [None, 43.21, 43.21, None]
    assert str(tmp_path) in str(subject.runs[1].path)
    assert subject.missing == ["mifa · seed 1: not finished"]
    assert main([str(moved), str(run)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page.parent == moved.parent
    assert main([str(run), str(moved)]) == 0
    assert Path(capsys.readouterr().out.strip()).name == page.name  # it follows from the folders
    assert "mifa · seed 1: not finished" in page.read_text()


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_run_that_was_cut_off(copied: Path, keep: int) -> None:
    (copied / "summary.json").unlink()
    (copied / "clients.json").unlink()
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:keep]) + lines[keep][:40])
    assert main([str(copied)]) == 0
    text = (copied / "report.html").read_text()
    last = f"round {keep - 1}" if keep else "no round"
    assert f"This run did not end: there is no summary.json. Its records end with {last} of 4." in text
    assert not (copied / "clients.json").exists()
    if keep == 3:
        assert f"{100 * json.loads(lines[2])['accuracy']:.2f}" in text


def test_names_and_reasons_are_no_markup(copied: Path) -> None:
    evil = "</script><script>window.hacked=1</script><!--"
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("bernoulli:p=0.8+pools:first=8", evil))
    with (copied / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(5, failed={"1": evil}, events=[{"event": evil, "client": 1}])) + "\n")
    assert main([str(copied)]) == 0
    text = (copied / "report.html").read_text()
    assert "<script>window" not in text
    assert "<!--" not in text


def spoil_task(folder: Path) -> list[str]:
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('task = "digits"', 'task = "mnist"'))
    return [str(folder), str(other)]


def spoil_config(folder: Path) -> list[str]:
    (folder / "config.toml").write_text("strategy = \n")
    return [str(folder)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda folder: [str(folder / "nowhere")], "there is no folder"),
        (lambda folder: [str(folder.parent)], "is no run: it has no config.toml"),
        (spoil_task, "do not fit together, their tasks differ: digits"),
        (spoil_config, "not TOML"),
        (lambda folder: [str(folder), "--output", str(folder / "no" / "where.html")], "cannot be written"),
    ],
)
def test_bad_folders(copied: Path, arguments: Callable[[Path], list[str]], message: str, capsys: Any) -> None:
    assert main(arguments(copied)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_report_that_cannot_be_written_loses_no_run(tmp_path: Path, capsys: Any) -> None:
    several = [*SMALL, "--seed", "0", "1", "--run-dir", str(tmp_path)]
    assert sim.main(several) == 0
    (compared,) = tmp_path.glob("compare-*")
    (compared / "report.html").unlink()
    (compared / "report.html").mkdir()
    capsys.readouterr()
    assert sim.main(several) == 0
    out = capsys.readouterr().out
    assert "no report: " in out
    assert "2 runs" in out
