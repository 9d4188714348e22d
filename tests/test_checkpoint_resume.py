"""A run that is killed at any moment and resumed ends like one that was not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import kill_when, records, saved_rounds, start, train, writes_checkpoint

from fedtide.config import Settings
from fedtide.engine.checkpoints.resume import settings_of
from fedtide.engine.run import simulate
from fedtide.engine.run_files import records_in
from fedtide.plan import Plan

ROUNDS = 30
COMMON: dict[str, Any] = {
    "model": "logistic",
    "num_clients": 8,
    "num_rounds": ROUNDS,
    "local_steps": 4,
    "batch_size": 5,
    "trace": "bernoulli:p=0.8+pools:first=4+lost:p=0.1",
    "arrivals": "6=9,7=20",
    "departures": "1=14",
    "engine": "inline",
    "client_gpus": 0.0,
    "cohort": "stacked",
    "cohort_size": 4,
    "checkpoint_every": 2,
    "evaluate_every": 5,
}
# What a method saves is tested with each method in tests/test_contract.py; here, each place that has a state.
CASES: dict[str, dict[str, Any]] = {
    "a table in a file": {"strategy": "mifa", "option": ("table-memory=0",)},
    "memories of clients": {"strategy": "fedlaavg", "option": ("memory=client",)},
    "late replies": {"strategy": "efl", "trace": "bernoulli:p=0.8+late:p=0.5,rounds=3+lost:p=0.1"},
    "a strategy of Flower": {"strategy": "flwr.server.strategy.FedYogi:eta=0.05"},
}


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records_in(path)]


@pytest.mark.slow
def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """As soon as there is a folder, before round 1, and after it; the last process starts over."""
    settings = Settings(**COMMON, strategy="mifa", run_dir=str(tmp_path))
    settings = replace(settings, checkpoint_every=20)
    whole, path = tmp_path / "whole", tmp_path / "killed"
    simulate(Plan.of(replace(settings, checkpoint_every=-1)), whole)
    for lines in (0, 1, 3):
        now = settings if not path.exists() else replace(settings, resume=str(path))
        process = start(train, now, path)
        assert kill_when(process, lambda n=lines: (path / "config.toml").exists() and records(path) >= n)
    assert saved_rounds(path) == []
    process = start(train, replace(settings, resume=str(path)), path)
    process.join()
    assert without_times(path) == without_times(whole)
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, path)]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_three_times(case: str, tmp_path: Path) -> None:
    """Once at a random moment of a round, twice while a checkpoint is written."""
    settings = Settings(**{**COMMON, **CASES[case], "run_dir": str(tmp_path)})
    rng = np.random.default_rng([*case.encode()])
    whole, path = tmp_path / "whole", tmp_path / "killed"
    simulate(Plan.of(replace(settings, checkpoint_every=-1)), whole)
    kills = 0
    for lines, inside in zip(np.sort(rng.integers(3, ROUNDS - 8, 3)), (True, False, True), strict=True):
        now = settings if not path.exists() else replace(settings, resume=str(path))
        kills += kill_when(
            start(train, now, path),
            lambda n=lines, w=inside: records(path) >= n and (writes_checkpoint(path) or not w),
        )
    process = start(train, replace(settings, resume=str(path)), path)
    process.join()
    assert process.exitcode == 0
    assert kills >= 2
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, path)]
    different = {"run_dir", "seconds"}
    assert [{k: v for k, v in end.items() if k not in different} for end in ends] == [
        {k: v for k, v in ends[0].items() if k not in different}
    ] * 2
    assert without_times(path) == without_times(whole)
    assert saved_rounds(path)[-1] == ROUNDS


def test_a_rate_that_was_left_to_the_model_is_kept(tmp_path: Path) -> None:
    """Under `flwr run`, defaults are given with `resume`."""
    plan = Plan.of(Settings(num_rounds=2, num_clients=4, engine="inline", run_dir=str(tmp_path)))
    _, folder, _ = simulate(plan)
    again = settings_of({"resume": str(folder.path), "learning-rate": 0.0, "num-rounds": 3}, "test")
    assert (again.learning_rate, again.num_rounds) == (0.2, 3)
    with pytest.raises(ValueError, match=r"learning-rate was 0\.2, not 0\.5"):
        settings_of({"resume": str(folder.path), "learning-rate": 0.5}, "test")
