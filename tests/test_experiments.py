"""The scripts that turn comparisons into the tables beside them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
from fakes import Rounds, make, play

import fedtide
import sim
from experiments import best_rates
from fedtide.config import Settings

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods under two traces, two seeds each, in this process."""
    place = tmp_path_factory.mktemp("runs")
    small = "--num-clients=4 --num-rounds=4 --local-steps=2 --num-workers=1 --train-loss --no-report"
    varied = "--strategy fedavg mifa --trace always bernoulli:p=0.5 --seed 0 1"
    assert sim.main([*small.split(), *varied.split(), f"--run-dir={place}"]) == 0
    (folder,) = place.glob("compare-*")
    return folder


def run(script: str, *arguments: str | Path) -> scripts.Done:
    return scripts.run(f"experiments/{script}.py", *arguments)


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def output_of(script: str, *arguments: str | Path) -> str:
    """Run a script that forks, which this process must not do once it has threads."""
    command = [sys.executable, f"experiments/{script}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_row_for_each_method_and_a_column_for_each_trace(comparison: Path) -> None:
    done = run("swing", comparison, "--rounds=2")
    assert done.code == 0, done.err
    header, _, *rows = map(cells_of, done.out.splitlines())
    assert header == ["strategy", "always", "bernoulli:p=0.5"]
    assert [row[0] for row in rows] == ["fedavg", "mifa"]
    assert all(float(entry.split()[0]) > 0 for row in rows for entry in row[1:])


def test_the_columns_of_cafed(comparison: Path) -> None:
    done = run("cafed", comparison)
    assert done.code == 0, done.err
    rows = [*map(cells_of, done.out.splitlines())]
    assert [row[0] for row in rows] == ["strategy", "---", "fedavg", "mifa"]
    highest, mean, deviation = (float(entry) for entry in rows[2][1:])
    assert 0 < mean <= highest <= 100
    assert 0 <= deviation < 50


def test_sets_that_recur_a_new_one_and_arrivals(tmp_path: Path) -> None:
    """A B A C, of which only A comes back; then four arrivals, one in every second round."""
    from experiments.initial_model import sessions

    small = "--num-clients=6 --num-rounds=12 --local-steps=2 --num-workers=1 --no-report --model=logistic"
    place = "experiments.initial_model."
    traces = f"--trace {place}Sets:order=ABAC,rounds=3 {place}OneByOne:first=2,start=4,every=2"
    varied = f"{traces} --initial-model two-norm --strategy fedavg"
    assert sim.main([*small.split(), *varied.split(), f"--run-dir={tmp_path}"]) == 0
    (folder,) = tmp_path.glob("compare-*")
    done = run("initial_model", folder)
    assert done.code == 0, done.err
    (row,) = [*map(cells_of, done.out.splitlines())][2:]
    assert row[2:4] == ["fedavg", "two-norm"]
    assert all(0 < float(entry) <= 100 for entry in row[4:])
    found = [sessions(path.parent) for path in tmp_path.glob("cells/*/metrics.jsonl")]
    arrivals = [("arrivals", start, start + 1) for start in (4, 6, 8)]
    sets = [("new", 4, 6), ("back", 7, 9), ("new", 10, 12)]
    assert sorted(found) == sorted([sets, [*arrivals, ("arrivals", 10, 12)]])


@pytest.mark.parametrize("every", [5, 12, 24])
def test_the_gain_at_which_old_updates_diverge(every: int) -> None:
    """In turns, x' = -a x mean of x over T rounds, which is stable up to a T = pi^2 / 2."""
    from experiments.stability import stability

    found = stability([np.array([number % every]) for number in range(60 * every)])
    assert found.limit == pytest.approx(np.pi**2 / 2 / every, rel=0.03)
    assert (found.mean_age, found.largest_age) == ((every - 1) / 2, every - 1)


def test_without_old_updates_only_a_step_twice_too_long_diverges(comparison: Path) -> None:
    from experiments.stability import stability

    assert stability([np.arange(3)] * 200).limit == pytest.approx(2, rel=0.03)
    done = run("stability", comparison, "--strategy=mifa")
    assert done.code == 0, done.err
    assert [cells_of(row)[0] for row in done.out.splitlines()[2:]] == ["always", "bernoulli:p=0.5"]
    assert "has no run of fedlaavg" in run("stability", comparison).err


def test_a_setting_that_does_not_vary_is_read_from_the_runs(comparison: Path) -> None:
    done = run("swing", comparison, "--across", "task", "batch-size")
    assert cells_of(done.out.splitlines()[0])[1] == "digits, 20"


def test_a_missing_folder_column_or_setting_is_named(comparison: Path, tmp_path: Path) -> None:
    assert "nonesuch" in run("swing", tmp_path / "nonesuch").err
    assert "has no setting 'batch'" in run("swing", comparison, "--across", "batch").err


def test_bias_by_class(tmp_path: Path) -> None:
    """Two clients of each class; where all take part, they count by their data, in turns not of late."""
    from experiments.bias_by_class import shares_of

    file, small = tmp_path / "e.toml", {"num-clients": 20, "num-rounds": 20, "local-steps": 1}
    lines = [f"{key} = {value}" for key, value in small.items()]
    lines += ['partition = "label:order=sorted"', 'trace = ["always", "diurnal:period=5,groups=5"]']
    file.write_text("\n".join([*lines, 'strategy = ["fedavg", "fedlaavg", "sequential-sgd"]']))
    _, _, *rows = map(cells_of, output_of("bias_by_class", file, "--rounds=5").splitlines())
    found = {name: entries for name, *entries in rows}
    assert found.keys() == {"fedavg", "fedlaavg"}
    whole, late = ([float(x) for x in entry.split("/")] for entry in found["fedavg"])
    assert whole == [0, 0]
    assert late[0] <= 2 < 45 <= late[1]
    assert float(found["fedlaavg"][1].split("/")[1]) <= 1
    with pytest.raises(ValueError, match="partition iid gives a client several classes; take label"):
        shares_of(Settings(num_clients=20, partition="iid"), 5)


def test_groups_that_swap_labels_and_correlated_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four classes change places in each group; clients are there as often as their stationary rates say."""
    from experiments.cafed import Correlated, Swapped
    from fedtide.tasks import PARTITIONS, SIZES, TASKS, digits

    monkeypatch.setitem(TASKS, "images", lambda data_dir: digits())
    plain, swapped = (
        task.federate(6, PARTITIONS["iid"], SIZES["equal"], 0.2, 3)
        for task in (TASKS["digits"](), Swapped("images", 2, 2, "nowhere"))
    )
    renamed = []
    for client in range(6):
        assert np.array_equal(*(data.train_rows(client) for data in (plain, swapped)))
        (_, before), (_, after) = (data.train_set(np.array([client])) for data in (plain, swapped))
        pairs = {(int(a), int(b)) for a, b in zip(before, after, strict=True)}
        assert len(pairs) == 10
        assert sum(a != b for a, b in pairs) == 4
        assert {(b, a) for a, b in pairs} == pairs
        (_, before), (_, after) = (data.holdout(np.array([client])) for data in (plain, swapped))
        assert {(int(a), int(b)) for a, b in zip(before, after, strict=True)} <= pairs
        renamed.append(frozenset(pairs))
    assert sorted(renamed.count(pairs) for pairs in set(renamed)) == [3, 3]
    trace = Correlated(40, 1)
    online = np.array([trace.round(t).completion > 0 for t in range(1, 3001)])
    assert sorted(np.unique(trace.share, return_counts=True)[1].tolist()) == [20, 20]
    np.testing.assert_allclose(online.mean(axis=0), trace.share, atol=0.06)
    stays = (online[1:] == online[:-1]).mean(axis=0)
    assert stays[trace.memory > 0].min() > 0.96 > stays[trace.memory == 0].max()


@pytest.mark.parametrize(("markov", "mean"), [(False, 6.2071), (True, 6.3934)])
def test_who_takes_part_in_the_logs_of_focus(markov: bool, mean: float) -> None:
    """Nobody in the rounds in which the authors' logs have no loss; in turn, the same clients one by one."""
    from experiments.focus import Participation

    trace, in_turn = (Participation(32, 0, markov=markov, in_turn=turn) for turn in (False, True))
    online = np.array([trace.round(t).online for t in range(1, 10_001)])
    assert online.sum(axis=1).mean() == pytest.approx(mean)
    empty = np.flatnonzero(~online.any(axis=1)).tolist()  # the logs count from 0
    assert empty == ([333, 348, 1030, 2325, 2602, 8147, 9468] if markov else [32, 1031, 3386, 8379, 8520])
    turns = [np.flatnonzero(in_turn.round(t).online).tolist() for t in range(1, online[:40].sum() + 1)]
    assert [[k] for there in online[:40] for k in np.flatnonzero(there).tolist()] == turns


def test_the_scaffold_of_focus_divides_by_ten() -> None:
    from experiments.focus import ScaffoldByTen

    means, tenths = (Rounds(make(method, local_steps=1)) for method in ("scaffold", ScaffoldByTen))
    before = means.strategy.weights.copy()
    np.testing.assert_allclose(play(tenths, [0, 1, 3]), before + 0.3 * (play(means, [0, 1, 3]) - before))


def test_moods_by_the_hour(tmp_path: Path) -> None:
    """Twelve users post each hour, half of them in a good mood; a client is those of one hour."""
    table = tmp_path / "sentiment140" / "training.1600000.processed.noemoticon.csv"
    table.parent.mkdir()
    form = '"{}","{}","Mon Apr 06 {:02}:{:02}:00 PDT 2009","NO_QUERY","u{}","a day like {}"\n'
    posts = [(4 * (k % 2), 12 * hour + k, hour, k, 12 * hour + k, k) for k in range(12) for hour in range(24)]
    table.write_text("".join(form.format(*post) for post in posts))
    hours = tmp_path / "posts.csv"
    done = run("sentiment", hours, "--num-clients", "24", "--data-dir", tmp_path)
    assert done.code == 0, done.err
    written = [tuple(map(int, line.split(","))) for line in hours.read_text().splitlines()[1:]]
    assert sorted(written) == sorted((hour, 3600 * hour + 60 * k) for _, _, hour, k, *_ in posts)

    from experiments.sentiment import moods
    from fedtide.tasks import SIZES

    positive = []
    for alpha in (0.0, 0.25, 0.5):
        data = moods(data_dir=str(tmp_path), alpha=alpha).federate(24, None, SIZES["equal"], 0.0, 3)
        positive.append([data.train_set(np.array([client]))[1].mean() for client in range(24)])
    noon = 1 - abs(np.arange(24) - 12) / 12
    np.testing.assert_allclose(positive, [noon, 0.25 + noon / 2, np.full(24, 0.5)], atol=0.2)
    small = "--num-rounds=2 --local-steps=2 --engine=inline --num-workers=1 --no-report --num-clients=24"
    trace = f"--trace=sleep:period=24,file={hours}"
    places = [f"--data-dir={tmp_path}", f"--run-dir={tmp_path}"]
    assert sim.main([*small.split(), "--task=experiments.sentiment.moods", trace, *places]) == 0


def test_rounds_to_recover() -> None:
    sys.path.insert(0, str(ROOT / "experiments"))
    from ruan_arrivals import rounds_to_recover

    accuracy = [0.1, 0.5, 0.8, 0.6, 0.7, 0.8, 0.9]  # a device arrives after round 2
    assert rounds_to_recover(accuracy, 2) == 3
    assert rounds_to_recover(accuracy, 6) == 101  # never
    assert rounds_to_recover([0.5, 0.4, 0.3, 0.6], 0, last=2) == 3


def test_departures_with_and_without_the_departed_in_the_objective(tmp_path: Path) -> None:
    done = run("ruan_departures", "table5", "--shifts", "2", "--seeds", "1", "--run-dir", tmp_path)
    assert done.code == 0, done.err
    *_, row = done.out.splitlines()
    assert row.startswith("| 2 | ")
    assert row.split(" | ")[5] in ("0 of 1", "1 of 1")
    assert len([*tmp_path.iterdir()]) == 3


def test_arrivals_with_and_without_fast_reboot(tmp_path: Path) -> None:
    flags = ("table4", "--shifts", "2", "--seeds", "1", "--run-dir", tmp_path)
    header, _, row = output_of("ruan_arrivals", *flags).splitlines()
    assert header == "| tau_0 | fast reboot | vanilla | auto |"
    assert row.startswith("| 2 | ")
    assert len([*tmp_path.iterdir()]) == 3


def test_a_limit_on_norms_keeps_a_broken_board_out(tmp_path: Path) -> None:
    done = run("poisoned", "--seeds=1", "--rounds=5", "--boards", "4", f"--run-dir={tmp_path}")
    assert done.code == 0, done.err
    _, _, plain, limited, *robust = map(cells_of, done.out.splitlines()[-7:])
    clean, *_ = map(float, limited[1].split(","))
    plain, *protected = (float(row[2].split(",")[0]) for row in (plain, limited, *robust[:2]))
    assert plain < clean - 10
    assert min(protected) > clean - 3


def test_best_rates(tmp_path: Path) -> None:
    """Two methods on two traces, each at the better of two rates."""
    common: dict[str, Any] = {"task": "digits", "model": "logistic", "trace": ["always", "bernoulli:p=0.5"]}
    common |= {"num_clients": 4, "num_rounds": 3, "report": "none", "num_workers": 1, "progress": False}
    common |= {"strategy": ["fedavg", "mifa"], "run_dir": str(tmp_path), "seed": [0, 1]}
    tuned = fedtide.compare(**common, tune=["learning-rate=0.001|0.1"], tune_trials=2, tune_seeds=2)
    done = run("best_rates", tuned.folder, "--csv", tmp_path / "all.csv")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[2:4]] == ["always", "bernoulli:p=0.5"]
    assert "Of 4 pairs of a method and a setting, a rate of their own gains 0.0 points" in lines[-1]
    _, *rows = (tmp_path / "all.csv").read_text().splitlines()
    assert [row.split(",")[5] for row in rows] == ["0.1"] * 4
    assert float(rows[0].split(",")[3]) == pytest.approx(100 * tuned.rows[0].score.mean, abs=0.01)
    done = run("best_rates", tuned.folder, "--beside", tmp_path / "all.csv")
    assert done.out.splitlines()[-1] == "digits, bernoulli:p=0.5: 1.00"


def test_rates_are_judged_on_seeds_on_which_they_were_not_chosen() -> None:
    first, second = (best_rates.Pair("digits", "always", name) for name in ("fedavg", "mifa"))
    trials: best_rates.Trials = {
        first: {0.1: {7: 0.5, 8: 0.6}, 1.0: {7: 0.9, 8: 0.8}},
        second: {0.1: {7: 0.7, 8: 0.9}, 1.0: {7: 0.6, 8: 0.5}},
    }
    # Seed 7 chooses 1 for all, and 1 and 0.1, judged on 8: 0 and 90 - 50. Seed 8 chooses 0.1 for all (0.75),
    # and 1 and 0.1, judged on 7: 90 - 50 and 0.
    assert best_rates.gains(trials, [7, 8]) == pytest.approx({first: 20, second: 20})
