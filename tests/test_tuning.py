"""`--tune`: what is searched, how it is proposed and judged, and how a search goes on after it was killed."""

import csv
import errno
import json
import math
import platform
import re
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from killed import command, kill_when, start

import sim
from fedtide.comparison.on_ray import OnRay
from fedtide.comparison.ranges import Among, Between, parse_tune, ranges_of, with_values
from fedtide.comparison.runner import Work, run_cell
from fedtide.comparison.search import PRUNED, Pruning, Search, Tried, judge, require_optuna
from fedtide.comparison.store import CellStore, Place
from fedtide.config import Settings
from fedtide.engine.read_run import read_run

pytest.importorskip("optuna")  # of requirements-dev.txt
SMALL = [
    *("--strategy", "fedavg", "fedprox", "--model", "logistic", "--num-clients", "6", "--num-rounds", "8"),
    *("--local-steps", "4", "--trace", "bernoulli:p=0.8", "--client-gpus", "0", "--seed", "0", "1"),
    *("--tune", "learning-rate=0.001..0.1", "option.mu=0.001|1", "--tune-trials", "7"),
]


def test_a_metric_of_ones_choice_is_searched_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The highest rate has the least log loss, which is better if lower."""
    flags = ["--strategy", "fedavg", "mifa", *SMALL[3:-6], "--num-workers=1", f"--run-dir={tmp_path}"]
    flags += ["--num-rounds=4", "--tune", "learning-rate=0.001|0.1", "--tune-trials=2"]
    with pytest.raises(SystemExit):
        sim.main([*flags, "--tune-for=log_loss", "--metrics=f1:average=macro"])
    says = "tune-for is 'log_loss', which is not one of --metrics: they are f1_macro"
    assert says in capsys.readouterr().err
    assert sim.main([*flags, "--tune-for=log_loss", "--metrics=log_loss"]) == 0
    (file,) = tmp_path.glob("compare-*/tuning.json")
    for search in json.loads(file.read_text())["searches"]:
        assert (search["metric"], search["chosen"]) == ("log_loss", {"learning-rate": 0.1})
        scores = {trial["values"]["learning-rate"]: trial["score"] for trial in search["trials"]}
        assert scores[0.1] < scores[0.001]
    assert "Log loss against learning rate" in (file.parent / "report.html").read_text()


# Ranges


def test_ranges() -> None:
    found = ranges_of(
        Settings(strategy="fedprox"),
        parse_tune(["learning-rate=0.01..1", "local-steps=1..100", "option.mu=0..1", "server-opt=adam|yogi"]),
    )
    rate, steps, mu, optimiser = found.values()
    assert (rate, rate.is_log) == (Between(0.01, 1.0, whole=False), True)
    assert [rate.at(share) for share in (0, 0.25, 0.5, 1)] == [0.01, 0.0316, 0.1, 1.0]
    assert (steps.at(0.5), steps.is_log) == (10, True)
    assert (mu.at(0.25), mu.is_log) == (0.25, False)
    assert [optimiser.at(share) for share in (0, 0.49, 0.5, 1)] == ["adam", "adam", "yogi", "yogi"]
    assert "option.mu" not in ranges_of(Settings(strategy="fedavg"), {"option.mu": "0..1"})
    assert Between(0.01, 1, False).wider("high") == Between(0.01, 10, False)
    assert Between(0.001, 10, False).wider("low") == Between(0.0001, 10, False)
    assert Between(-1, 1, False).wider("low") == Between(-2, 1, False)
    assert Between(1, 16, True).wider("low") == Between(1, 16, True)  # a batch-size of 0 means all examples
    assert Between(2, 50, True).wider("low") == Between(1, 50, True)


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.lists(st.floats(0, 1), min_size=1))
def test_values_lie_within_the_range_in_order(low: float, factor: float, shares: list[float]) -> None:
    text = f"learning-rate={low!r}..{low * factor!r}"
    rate = ranges_of(Settings(), parse_tune([text]))["learning-rate"]
    values = [rate.at(share) for share in sorted(shares)]
    assert values == sorted(values)
    assert low <= values[0] <= values[-1] <= low * factor
    assert math.isclose(values[0], low * factor ** min(shares), rel_tol=6e-3)


def test_values_replace_what_the_settings_say() -> None:
    settings = Settings(strategy="fedprox", option=("mu=5",))
    found = with_values(settings, {"learning-rate": 0.3, "option.mu": 0.25})
    assert (found.learning_rate, found.option) == (0.3, ("mu=0.25",))


# Proposals


def searched(score: Callable[[float], float], seed: int) -> Search:
    """Search a rate between 0.01 and 1, whose score is given."""
    require_optuna()
    search = Search([], [Settings(seed=seed)], {"learning-rate": Between(0.01, 1.0, whole=False)}, 12)
    search.go_on()
    while search.batch:
        for values in search.batch:
            (settings,) = search.settings_of(values)
            reached = score(values["learning-rate"])
            search.known[settings] = Tried(reached, {1: reached})
        search.go_on()
    return search


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("good", [0.03, 0.15, 0.4])
def test_the_one_good_rate_is_found(seed: int, good: float) -> None:
    """All others but those within a factor of 1.4 are as bad as no training; 12 trials, one seed each."""
    search = searched(lambda rate: 0.9 if abs(math.log(rate / good)) < math.log(1.42) else 0.1, seed)
    best = search.best()
    assert best
    assert best.score == 0.9
    assert len(search.trials) == 12
    again = searched(lambda rate: 0.9 if abs(math.log(rate / good)) < math.log(1.42) else 0.1, seed)
    assert search.trials == again.trials


def test_a_best_value_at_the_end_widens_the_range_once() -> None:
    search = searched(lambda rate: min(rate, 10.0), 0)
    rates = [trial.values["learning-rate"] for trial in search.trials]
    assert max(rates[: search.half]) <= 1
    assert rates[search.half] == 3.16  # the middle of what is new
    assert 1 < max(rates) <= 10
    assert search.ends() == {"learning-rate": "high"}
    search.trials.append(search.trials[0]._replace(values={"learning-rate": 11.0}))
    assert not search.ends()


def test_few_combinations_are_all_tried() -> None:
    ranges = {"local-steps": Among((1, 2, 3)), "lr-schedule": Among(("constant", "inverse-sqrt"))}
    search = Search([], [Settings(seed=0), Settings(seed=1)], ranges, 12)
    search.go_on()
    tried = [tuple(values.values()) for values in search.batch]
    assert tried == [(steps, name) for steps in (1, 2, 3) for name in ("constant", "inverse-sqrt")]
    assert len(search.waiting) == 2 * len(tried)
    search.known = {
        settings: Tried(float(settings.seed), {1: 0.0, 2: 4.0 * settings.seed}) for settings in search.waiting
    }
    search.go_on()
    assert not search.batch
    best = search.best()
    assert best
    assert (best.score, best.curve) == (0.5, {1: 0.0, 2: 2.0})  # means over the seeds
    assert best.values["local-steps"] == 1  # all are equal


def test_a_trial_is_given_up_when_its_best_is_below_the_median() -> None:
    curves = [{2: v, 4: v, 8: v} for v in (0.1, 0.3, 0.5, 0.7, 0.9)]
    for higher, falls in ((True, 0.4), (False, 0.6)):
        is_hopeless = judge(Pruning(curves, "accuracy", higher))
        assert not is_hopeless({"round": 1, "accuracy": falls})  # in the warm-up
        assert not is_hopeless({"round": 3})  # not evaluated
        assert is_hopeless({"round": 4, "accuracy": falls})
        is_hopeless = judge(Pruning(curves, "accuracy", higher))
        assert not is_hopeless({"round": 2, "accuracy": 1 - falls})
        assert not is_hopeless({"round": 4, "accuracy": falls})  # it has been better
        assert not is_hopeless({"round": 8, "accuracy": falls})  # it is over anyway
        assert judge(Pruning(curves, "accuracy", higher))({"round": 4, "accuracy": None})


def test_what_is_given_up_was_stopped_by_no_setting_and_by_no_trace(tmp_path: Path) -> None:
    best = Pruning([dict.fromkeys(range(1, 9), 1.0)] * 5, "accuracy", True)
    small = {"model": "logistic", "num_clients": 4, "num_rounds": 8, "report": "none", "client_gpus": 0.0}
    place = Place(platform.node(), str(tmp_path), str(tmp_path / "trial"))
    files = run_cell(Work(Settings(**small), place, best))
    assert PRUNED in files
    assert not isinstance(files, str)
    summary = json.loads(files["summary.json"])
    assert summary["rounds"] < 8
    assert "stopped" not in summary


# Searches


def run(folder: Path, *arguments: str, code: int = 0) -> None:
    assert sim.main([*SMALL, "--num-workers", "1", "--run-dir", str(folder), *arguments]) == code


def found_in(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.glob("compare-*/tuning.json")
    searches: list[dict[str, Any]] = json.loads(file.read_text())["searches"]
    return searches


def test_a_value_that_is_searched_is_said_to_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--num-clients 5 --num-rounds 2 --num-workers 1 --no-report --seed 0 1 --learning-rate 0.3"
    tune = ["--tune", "learning-rate=0.1|0.2", "--tune-trials", "2", "--run-dir", str(tmp_path)]
    assert sim.main([*flags.split(), "--strategy", "fedavg", *tune]) == 0
    assert "learning-rate 0.3 is replaced by what the search finds" in capsys.readouterr().out


def test_a_tuned_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    printed = " ".join(capsys.readouterr().out.split())
    assert "7 trials each for 2 combinations of settings, seed 1000000" in printed
    assert "examples that all clients hold out of training (20%)" in printed
    assert "strategy fedavg: has no option.mu" in printed
    assert "logarithmic scale: learning-rate 0.001..0.1" in printed
    assert "learning-rate was widened to 0.001..1" in printed
    assert [*map(int, re.findall(r"trial (\d+)/14 strategy fed", printed))] == [*range(1, 15)]
    assert len(re.findall(r", about [0-9hmins ]+ left", printed)) >= 13  # all but the last trial
    fedavg, fedprox = found_in(tmp_path)
    assert [len(search["trials"]) for search in (fedavg, fedprox)] == [7, 7]
    assert [[*search["chosen"]] for search in (fedavg, fedprox)] == [
        ["learning-rate"],
        ["learning-rate", "option.mu"],
    ]
    (folder,) = tmp_path.glob("compare-*")
    best = max((trial for trial in fedavg["trials"] if not trial["pruned"]), key=lambda t: t["score"])
    assert best["values"] == fedavg["chosen"]
    with (folder / "table.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["learning-rate"]) for row in rows] == [
        search["chosen"]["learning-rate"] for search in (fedavg, fedprox)
    ]
    assert [row["option.mu"] == "" for row in rows] == [True, False]
    assert float(rows[1]["difference"]) == pytest.approx(
        float(rows[1]["accuracy"]) - float(rows[0]["accuracy"])
    )
    for cell in tmp_path.glob("cells/fedavg-*"):
        settings = read_run(cell).settings
        assert settings.learning_rate == fedavg["chosen"]["learning-rate"]
        assert (settings.evaluate_on, settings.seed in (0, 1)) == ("test", True)
    trials = [read_run(path).settings for path in folder.glob("tuning/cells/*")]
    assert {(trial.evaluate_on, trial.seed) for trial in trials} == {("everybody", 1_000_000)}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("**/metrics.jsonl")}
    table = (folder / "table.md").read_text()
    assert "Best values of learning-rate, option.mu" in table
    run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("**/metrics.jsonl")} == before
    assert (folder / "table.md").read_text() == table
    shutil.rmtree(next(folder.glob("tuning/cells/*")))
    run(tmp_path)
    assert found_in(tmp_path) == [fedavg, fedprox]


def test_a_trial_is_the_mean_over_seeds(tmp_path: Path) -> None:
    """None of them is one of the comparison's; the same command continues the search."""
    flags = ["--strategy=fedavg", "--seed=1000001", "--tune", "learning-rate=0.01|0.1", "--tune-seeds=2"]
    run(tmp_path, *flags, "--no-report")
    (search,) = found_in(tmp_path)
    assert search["seeds"] == [1_000_000, 1_000_002]
    (folder,) = tmp_path.glob("compare-*")
    trials = [read_run(path) for path in folder.glob("tuning/cells/*")]
    assert len(trials) == 4
    for trial in search["trials"]:
        own = [
            run.score() for run in trials if run.settings.learning_rate == trial["values"]["learning-rate"]
        ]
        assert trial["score"] == pytest.approx(sum(own) / 2)
    shutil.rmtree(next(folder.glob("tuning/cells/*")))
    run(tmp_path, *flags, "--no-report")
    assert found_in(tmp_path) == [search]


def test_a_signal_counts_while_a_trial_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CellStore, "save", full)
    run(tmp_path, code=128 + signal.SIGTERM)


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_same_trials(tmp_path: Path) -> None:
    """Killed twice; then on Ray with two workers, which starts once, for the comparison as well."""
    whole, killed, on_ray = (tmp_path / name for name in ("whole", "killed", "on_ray"))
    few = ["--strategy", "fedprox", "--no-report", "--seed", "0"]
    run(whole, *few)
    for number in (2, 5):
        process = start(command, [*SMALL, *few, "--num-workers", "1", "--run-dir", str(killed)])
        trials = "compare-*/tuning/cells/[!.]*/summary.json"
        assert kill_when(process, partial(lambda n, of: len([*killed.glob(of)]) >= n, number, trials))
    run(killed, *few)
    with patch("fedtide.comparison.on_ray.OnRay", wraps=OnRay) as started:
        run(on_ray, *few, "1", "--num-workers", "2")
    assert started.call_count == 1
    assert found_in(killed) == found_in(whole)
    assert found_in(on_ray) == found_in(whole)


# Bad input


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line that refuses a command."""
    with pytest.raises(SystemExit) as ended:
        sim.main(["--num-workers", "1", "--run-dir", str(folder), *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learning-rate=1..0.01"], "wrong way round"),
        (["learning-rate=0.1..0.1"], "wrong way round, or empty"),
        (["learning-rate=0..1"], "learning-rate is 0.0; it must be positive"),
        (["learning-rate=a..b"], "learning-rate is 'a'; it must be a number"),
        (["learning-rate=0.1"], "write LOW..HIGH"),
        (["learning-rate"], "is not KEY=LOW..HIGH"),
        (["learning-rate=0.1|0.1"], "given twice"),
        (["learning-rate=0.1|0.2", "learning-rate=0.1..1"], "given twice"),
        (["lerning-rate=0.1..1"], "did you mean learning-rate?"),
        (["seed=1..3"], "tune seed: what can be searched is learning-rate"),
        (["mu=0.1..1"], "an option of the method is option.mu"),
        (["option.mu=0.1..1"], "strategy scheme-c has no option 'mu'"),
        (["lr-schedule=constant|nonesuch"], "unknown lr-schedule 'nonesuch'"),
        (["local-steps=0..3"], "local-steps is 0; it must be at least 1"),
        (["clients-per-round=1..30"], "at most num-clients"),
        (["learning-rate=0.1..1", "--learning-rate", "1", "2"], "it has several values as well"),
        (["learning-rate=0.1..1", "--tune-trials", "1"], "tune-trials is 1"),
        (["learning-rate=0.1..1", "--tune-seeds", "0"], "tune-seeds is 0; it must be from 1 to 100"),
        (["option.mu=0.1..1", "--strategy", "fedprox", "mifa"], "strategy mifa has no option.mu"),
    ],
)
def test_bad_ranges(arguments: list[str], message: str, capsys: Any, tmp_path: Path) -> None:
    assert message in refused(tmp_path, capsys, "--tune", *arguments)
    assert not [*tmp_path.iterdir()]


def test_optuna_may_be_missing(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install optuna" in refused(tmp_path, capsys, "--tune", "learning-rate=0.1..1")


def test_one_example_a_client_leaves_none_for_validation(capsys: Any, tmp_path: Path) -> None:
    table = tmp_path / "few.csv"
    rng = np.random.default_rng(0)
    rows = "\n".join(f"{a:.3f},{b:.3f},{int(a > 0)}" for a, b in rng.normal(size=(10, 2)))
    table.write_text(f"a,b,label\n{rows}\n")
    task = ["--task", f"csv:file={table},target=label", "--num-clients", "8", "--partition", "iid"]
    assert "no validation data" in refused(tmp_path, capsys, *task, "--tune", "learning-rate=0.1..1")
