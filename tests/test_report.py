"""Reports: numbers by hand, what is kept of the clients, and folders that are incomplete."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtide
import sim
from clients.simulated.evaluation import part_scores
from fedtide.comparison.bands import bands_of
from fedtide.comparison.comparison import Comparison
from fedtide.comparison.pivot import pivots_of
from fedtide.comparison.results import CellRun, rows_of
from fedtide.config import Settings
from fedtide.config.grid import Cell
from fedtide.engine.client_numbers import read_numbers
from fedtide.engine.client_states import State, states_of
from fedtide.engine.read_run import Run
from fedtide.engine.run import simulate
from fedtide.engine.update_shares import update_shares
from fedtide.plan import Plan
from fedtide.report.__main__ import main
from fedtide.report.curves import curves_figure, smoothed
from fedtide.report.participation import COLUMNS, ROWS, StateGrid, of_run
from fedtide.report.rounds import event_figure
from fedtide.report.subject import read_subject
from traces import RoundAvailability

SMALL = [
    *("--model", "logistic", "--num-clients", "6", "--num-rounds", "4", "--local-steps", "4"),
    *("--client-gpus", "0", "--num-workers", "1"),
]
ONE = [*SMALL, "--engine", "inline", "--trace", "bernoulli:p=0.8+pools:first=8"]
GRID = 'seed = [0, 1]\n[[cell]]\nstrategy = "fedavg"\npaper = 43.21\n[[cell]]\nstrategy = "mifa"\n'


def record(t: int, **more: Any) -> dict[str, Any]:
    return {"round": t, "selected": [], "active": [], "steps": [], "failed": {}, "bytes_up": 0, **more}


def run_of(records: list[Any], **summary: Any) -> Run:
    return Run(Path(), {}, summary, records)


def test_the_states_of_clients_by_hand() -> None:
    reasons = ("dropped in mid-round", "reply lost", "not finite", "no reply by the end of the round")
    failed = {str(client): reason for client, reason in enumerate(reasons, start=2)}
    asked = {"selected": [2, 3, 4, 5, 6, 7], "active": [6, 7, 8], "steps": [4, 3, None]}
    recorded = record(5, **asked, failed=failed, at_work=[9])
    member, online = np.ones(11, bool), np.ones(11, bool)
    member[0] = online[0] = online[1] = False
    now = RoundAvailability(member, online, np.ones(11, np.float32))
    known = ["ABSENT", "OFFLINE", "DROPPED", "LOST", "REJECTED", "LATE", "COMPLETE", "INCOMPLETE", "COMPLETE"]
    assert [State(s).name for s in states_of(recorded, now, 11, 4)] == [*known, "LATE", "NOT_SELECTED"]
    alone = [State(s).name for s in states_of(recorded, None, 11, 4)]
    assert alone == ["NOT_SELECTED", "NOT_SELECTED", *known[2:], "LATE", "NOT_SELECTED"]


def test_participation_without_the_trace() -> None:
    records = [record(0), record(1, selected=[0, 1], active=[1], steps=[10], failed={"0": "reply lost"})]
    found = of_run(records, Settings(num_clients=4), "no such file")
    assert found is not None
    assert found.grid.states[:, 0].tolist() == [State.LOST, State.COMPLETE, *[State.NOT_SELECTED] * 2]
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
        run_of([record(t, active=[0] * (t > 0), loss=1.0 * s, accuracy=a) for t, a in enumerate(scores)])
        for s, scores in ((1, [0.1, None, 0.5, None, 0.7]), (3, [0.1, None, 0.3]))
    ]
    every = bands_of(runs, "accuracy", 10)
    assert [*every] == ["rounds", "uploads", "megabytes"]  # there is no clock
    band, merged = every["rounds"], bands_of(runs, "accuracy", 1)["rounds"]
    assert band.x.tolist() == every["uploads"].x.tolist() == [0, 2, 4]
    expected = [[0.1, 0.3, 0.7], [0.1, 0.4, 0.7], [0.1, 0.5, 0.7]]
    np.testing.assert_allclose([band.low, band.mean, band.high], expected)
    assert (merged.low[0], merged.high[0], merged.mean[0]) == pytest.approx((0.1, 0.7, 0.4))
    assert bands_of(runs, "train_loss", 10) == {}


def test_curves_end_where_the_first_seed_has_stopped() -> None:
    goes_on, ended = (
        [record(t, accuracy=a) for t, a in enumerate(of)] for of in ([0.1, 0.5, 0.7], [0.1, 0.9])
    )
    band = bands_of([run_of(goes_on), run_of(ended, stopped="patience")], "accuracy", 100)["rounds"]
    assert band.x.tolist() == [0, 1]
    assert band.mean.tolist() == pytest.approx([0.1, 0.7])


def test_curves_of_seeds_that_are_evaluated_at_different_times() -> None:
    """In event time: at any second, the mean is over both, on the lines that join their evaluations."""
    places = ([(0, 0, 0.0), (2, 60, 0.6), (5, 120, 0.9)], [(0, 0, 0.2), (3, 80, 0.6), (4, 110, 0.9)])
    runs = [
        run_of([record(t, virtual_seconds=s, accuracy=a) for t, s, a in of], stopped="until") for of in places
    ]
    bands = bands_of(runs, "accuracy", 100)
    assert bands["seconds"].x.tolist() == [0, 60, 80, 110]
    assert bands["seconds"].low.tolist() == pytest.approx([0, 0.5, 0.6, 0.85])
    assert bands["seconds"].high.tolist() == pytest.approx([0.2, 0.6, 0.7, 0.9])
    assert bands["seconds"].mean.tolist() == pytest.approx([0.1, 0.55, 0.65, 0.875])
    assert bands["rounds"].x.tolist() == [0, 2, 3, 4]
    assert bands["rounds"].mean.tolist() == pytest.approx([0.1, (0.6 + 0.2 + 0.8 / 3) / 2, 0.65, 0.85])


def test_averaged_and_logarithmic_curves() -> None:
    assert smoothed(np.array([1.0, 2.0, 6.0, 4.0]), 3) == pytest.approx([1.5, 3, 4, 5])
    assert smoothed(np.array([1.0, 3.0, 5.0, 9.0]), 7) == pytest.approx(
        [2, 3, 17 / 3, 7]
    )  # of a short line: 3
    scores = [0.1, 0.2, 0.6, 0.4, 0.5]
    runs = {"a": [run_of([record(t, loss=s, accuracy=s) for t, s in enumerate(scores)])]}
    figure = curves_figure(runs, {"": {"a": "a"}}, {})
    assert figure is not None
    assert figure.switches == {"smooth": "Moving average of 3 points", "log": "Logarithmic loss"}
    view = figure.views["rounds"]
    assert [line["smooth"]["y"] for line in view["data"]] == [
        [15, 30, 40, 50, 45],
        [0.15, 0.3, 0.4, 0.5, 0.45],
    ]
    assert [view["layout"][axis].get("log") for axis in ("yaxis", "yaxis2")] == [None, {"type": "log"}]
    at_zero = {"a": [run_of([record(t, loss=float(t)) for t in range(3)])]}
    figure = curves_figure(at_zero, {"": {"a": "a"}}, {})
    assert figure is not None
    assert figure.switches == {}


def test_time_is_the_first_axis_where_all_runs_have_a_clock() -> None:
    def run(**more: Any) -> list[Any]:
        times = [{key: t * value for key, value in more.items()} if t else {} for t in range(3)]
        return [run_of([record(t, active=[0] * t, loss=1.0, **times[t]) for t in range(3)])]

    def axes(*runs: list[Any]) -> list[str]:
        figure = curves_figure(
            dict(zip("ab", runs, strict=False)), {"": {k: k for k in "ab"[: len(runs)]}}, {}
        )
        assert figure is not None
        assert [*figure.views] == [*figure.toggles[0].options]
        return [*figure.views]

    timed, untimed = run(virtual_seconds=90.0), run()
    assert axes(timed) == ["seconds", "rounds", "uploads"]
    assert axes(timed, untimed) == ["rounds", "uploads", "seconds"]
    assert axes(untimed) == ["rounds", "uploads"]


def test_events_failures_and_phases() -> None:
    departure = {"event": "departure", "client": 3, "objective": "exclude", "gamma": 0.25}
    records = [
        record(1, learning_rate=0.1, failed={"1": "7 steps of 5", "2": "1e-9 steps of 2.5"}),
        record(2, learning_rate=0.2, events=[departure], failed={"1": "reply lost"}),
    ]
    records[0]["seconds"] = {"select": 0.1, "transfer": 0.1, "train": 0.4, "write": None}
    run = run_of(records)
    phases = {name: values[0] for name, values in run.history.phases.items()}
    assert phases == {"select": 0.1, "transfer": 0.1, "train": 0.4}
    assert run.history.failures == {"… steps of …": {1: 2}, "reply lost": {2: 1}}
    figure = event_figure({"a": run})
    assert figure is not None
    assert figure.table is not None
    left, restarts = [[*row] for row in figure.table.rows if row[0] == "2" and not row[4].endswith("round")]
    assert [row[:2] + row[3:4] for row in (left, restarts)] == [["2", "", "3"], ["2", "", ""]]
    assert "dropped" in left[2]
    assert "gamma 0.25" in left[4]


def test_what_is_kept_of_the_clients(tmp_path: Path) -> None:
    of_clients = {"num_clients": 5, "sizes": "pareto:index=1", "evaluate_clients": 6, "num_rounds": 6}
    own = {"strategy": "fedavg", "model": "logistic", "trace": "bernoulli:p=0.6", "engine": "inline"}
    settings = Settings(**own, **of_clients, run_dir=str(tmp_path))
    experiment, folder, _ = simulate(Plan.of(settings))
    assert main([str(folder.path)]) == 0
    kept = read_numbers(folder.path)
    assert kept is not None
    sizes = experiment.data.sizes
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert kept.rates == pytest.approx([sum(k in r.get("active", []) for r in lines) / 6 for k in range(5)])
    assert kept.data_shares == pytest.approx(sizes / sizes.sum())
    shares = update_shares(experiment.plan, sizes, experiment.trace)
    np.testing.assert_allclose(kept.update_shares, shares, rtol=1e-5)
    holdouts = [experiment.data.holdout(np.array([k])) for k in range(5)]
    scores = part_scores(experiment.evaluator.model, holdouts).means
    np.testing.assert_allclose(kept.scores, scores, atol=1e-6)
    assert (kept.scores_on, kept.notes) == ("its held-out examples", [])
    before = (folder.path / "clients.json").stat().st_mtime_ns
    assert main([str(folder.path)]) == 0
    assert (folder.path / "clients.json").stat().st_mtime_ns == before
    (folder.path / "clients.json").unlink()  # as in the folder of an older version
    assert main([str(folder.path)]) == 0
    assert read_numbers(folder.path) == kept


def test_the_page_gives_reasons_for_what_is_missing(tmp_path: Path) -> None:
    assert sim.main([*ONE, "--run-dir", str(tmp_path), "--strategy", "sequential-sgd"]) == 0
    (folder,) = tmp_path.iterdir()

    def page() -> str:
        assert main([str(folder)]) == 0
        return (folder / "report.html").read_text()

    assert "sequential-sgd trains without clients" in page()
    (folder / "clients.json").unlink()
    (folder / "weights.npz").write_bytes((folder / "weights.npz").read_bytes()[:100])
    assert "not a zip file" in page()
    (folder / "weights.npz").unlink()
    assert "weights.npz" in page()
    config = (folder / "config.toml").read_text().replace('task = "digits"', 'task = "mnist"')
    config = config.replace('data-dir = "data"', 'data-dir = "nowhere"').replace("bernoulli:p=0.8", "labels")
    (folder / "config.toml").write_text(config)
    text = page()
    assert "the data of mnist are not in nowhere" in text
    assert "it depends on the data, which are not in nowhere" in text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    base = tmp_path_factory.mktemp("runs")
    assert sim.main([*ONE, "--run-dir", str(base)]) == 0
    (folder,) = base.iterdir()
    return folder


def compare(base: Path, *more: str) -> Path:
    """Compare four runs, with a result from a paper; return the comparison's folder."""
    (base / "grid.toml").write_text(GRID)
    arguments = ["--config", str(base / "grid.toml"), "--reach", "0.2", "--run-dir", str(base)]
    assert sim.main([*SMALL, *arguments, *more]) == 0
    (folder,) = base.glob("compare-*")
    return folder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison."""
    return compare(tmp_path_factory.mktemp("compared"))


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of the run folder."""
    return Path(shutil.copytree(run, tmp_path / "copied"))


def test_a_run_leaves_a_report(run: Path, capsys: Any) -> None:
    text = (run / "report.html").read_text()
    accuracy = json.loads((run / "summary.json").read_text())["final"]["accuracy"]
    headings = ("Accuracy and loss", "Participation", "Bias", "Seconds by phase")
    for expected in (f"{100 * accuracy:.2f}", "bernoulli:p=0.8+pools:first=8", *headings):
        assert expected in text
    assert not [address for address in ("src=", "<link") if address in text.split("<script>")[0]]
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")


def test_a_comparison_leaves_a_report_and_its_cells_none(compared: Path) -> None:
    text = (compared / "report.html").read_text()
    for line in (compared / "table.md").read_text().partition("\n\n")[0].splitlines()[2:]:
        for cell in filter(None, (cell.strip() for cell in line.split("|"))):
            assert f">{cell}</td>" in text, cell
    assert "43.21" in text
    assert ">rounds to 20%<" in text
    assert "Costs to target" in text
    assert "1 setting: too few to tell methods apart by accuracy" in text
    cells = [*(compared.parent / "cells").iterdir()]
    assert len(cells) == 4
    assert all((cell / "clients.json").exists() and not (cell / "report.html").exists() for cell in cells)
    assert main([str(cells[0]), "--output", str(compared / "cell.html")]) == 0
    assert (compared / "cell.html").exists()


def test_a_grid_of_strategies_and_traces() -> None:
    """The best of each column is bold, ties too."""
    finals = {"fedavg": {"always": 0.8, "phones": 0.7}, "mifa": {"always": 0.9, "phones": 0.6}}
    finals["mimic"] = {"always": 0.9}
    runs = []
    for strategy, by_trace in finals.items():
        for trace, accuracy in by_trace.items():
            varied = {"strategy": strategy, "trace": trace}
            run = Run(Path(), {}, {}, [{"round": 1, "accuracy": accuracy}])
            runs.append(CellRun(Cell(Settings(**varied), varied), run))
    subject = Comparison(runs, Path())
    assert list(subject.panels) == ["trace always", "trace phones"]
    (found,) = pivots_of(rows_of(runs))
    assert found.texts == [["fedavg", "80.00", "70.00"], ["mifa", "90.00", "60.00"], ["mimic", "90.00", ""]]
    assert found.best == {(1, 0), (2, 0), (0, 1)}
    assert found.note == "One seed. Bold: the best of each column."


def test_asynchronous_and_synchronous_methods_share_a_panel() -> None:
    """How many replies end a round belongs to the method, as in the claims of a comparison."""
    runs = []
    for ends in (0, 5):
        for trace in ("phones", "speeds"):
            varied = {"strategy": "fedavg", "round-ends": ends, "trace": trace}
            runs.append(
                CellRun(
                    Cell(Settings(strategy="fedavg", round_ends=ends, trace=trace), varied),
                    Run(Path(), {}, {}, []),
                )
            )
    names = {f"fedavg · round-ends {ends}": f"fedavg · round-ends {ends} · trace " for ends in (0, 5)}
    assert Comparison(runs, Path()).panels == {
        f"trace {trace}": {name: label + trace for name, label in names.items()}
        for trace in ("phones", "speeds")
    }


@pytest.mark.parametrize("kept", [{"strategy": [1, 2]}, {"nonesuch": {}}, ["fedavg"], "fedavg", None])
def test_a_baseline_that_no_comparison_has_is_the_first_method(
    compared: Path, tmp_path: Path, kept: Any
) -> None:
    folder = Path(shutil.copytree(compared.parent, tmp_path / "copy")) / compared.name
    about = json.loads((folder / "comparison.json").read_text())
    assert about["baseline"] == {"strategy": "fedavg"}
    (folder / "comparison.json").write_text(json.dumps(about | {"baseline": kept}))
    assert {row.versus for row in fedtide.load(folder).rows} == {"fedavg"}


def test_a_comparison_made_again(compared: Path, tmp_path: Path, capsys: Any) -> None:
    """Without a report, with one that computes nothing, and with one that cannot be written."""
    shutil.copytree(compared.parent / "cells", tmp_path / "cells")
    for numbers in tmp_path.glob("cells/*/clients.json"):
        numbers.unlink()
    page = compare(tmp_path, "--no-report") / "report.html"
    assert not page.exists()
    compare(tmp_path)
    assert "missing for 4 runs: not computed yet" in page.read_text()
    assert not [*tmp_path.glob("cells/*/clients.json")]
    page.unlink()
    page.mkdir()
    capsys.readouterr()
    compare(tmp_path)
    out = capsys.readouterr().out
    assert "no report: " in out
    assert "4 runs" in out


def test_several_folders(run: Path, compared: Path, tmp_path: Path, capsys: Any) -> None:
    moved = Path(shutil.copytree(compared.parent, tmp_path / "moved")) / compared.name
    shutil.rmtree(next((tmp_path / "moved" / "cells").glob("mifa-*-seed1-*")))
    index = (moved / "cells.json").read_text()
    (moved / "cells.json").write_text(index.replace(str(compared.parent), "where/they/were"))
    subject = read_subject([run, moved])
    assert [label.split(" · ")[0] for label in subject.groups] == ["scheme-c", "fedavg", "mifa"]
    assert [set(cell.varied) for cell, _ in subject.runs] == [{"strategy", "trace", "seed"}] * 4
    assert [cell.paper for cell, _ in subject.runs] == [None, 43.21, 43.21, None]
    assert str(tmp_path) in str(subject.runs[1].run.path)
    assert subject.missing == ["mifa · seed 1: not finished"]
    pages = []
    for folders, flags in (([moved, run], []), ([run, moved], ["--link"])):
        assert main([*map(str, folders), *flags]) == 0
        pages.append(Path(capsys.readouterr().out.strip()))
    assert pages[0].parent == moved.parent
    assert pages[0].name == pages[1].name  # it follows from the folders
    assert "mifa · seed 1: not finished" in pages[0].read_text()
    (linked,) = re.findall('<script src="(.*?)"', pages[1].read_text())
    assert (pages[1].parent / linked).stat().st_size > 1e6 > pages[1].stat().st_size


@pytest.mark.parametrize("keep", [0, 3])
def test_a_run_that_was_cut_off(copied: Path, keep: int) -> None:
    (copied / "summary.json").unlink()
    (copied / "clients.json").unlink()
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(lines[:keep]) + lines[keep][:40])
    assert main([str(copied)]) == 0
    text = (copied / "report.html").read_text()
    assert "This run did not finish: there is no summary.json." in text
    assert f"{f'round {keep - 1}' if keep else 'no round'} of 4." in text
    assert not (copied / "clients.json").exists()
    if keep:
        assert f"{100 * json.loads(lines[keep - 1])['accuracy']:.2f}" in text


def test_names_and_reasons_are_not_markup(copied: Path) -> None:
    evil = "</script><script>window.hacked=1</script><!--"
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("bernoulli:p=0.8+pools:first=8", evil))
    with (copied / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(5, failed={"1": evil}, events=[{"event": evil, "client": 1}])) + "\n")
    assert main([str(copied)]) == 0
    text = (copied / "report.html").read_text()
    assert "<script>window" not in text
    assert "<!--" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{}/nowhere", "does not exist"),
        ("{}/..", "has no config.toml"),
        ("{} {}/other", "different tasks and cannot be compared: digits"),
        ("{}/broken", "not TOML"),
        ("{} --output {}/no/where.html", "no/where.html: No such file"),
    ],
)
def test_bad_folders(copied: Path, arguments: str, message: str, capsys: Any) -> None:
    config = (copied / "config.toml").read_text()
    for name, text in (("other", config.replace('task = "digits"', 'task = "mnist"')), ("broken", "task =")):
        (copied / name).mkdir()
        (copied / name / "config.toml").write_text(text)
    assert main(arguments.replace("{}", str(copied)).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
