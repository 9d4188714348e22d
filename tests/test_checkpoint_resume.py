"""A run that is killed at any moment and goes on ends like one that was not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import kill_after, start

import strategies
from flexfl.config import Settings
from flexfl.engine.run import simulate
from flexfl.engine.run_folder import records_in

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
LATE = {"trace": "bernoulli:p=0.8+late:p=0.5,rounds=3+lost:p=0.1"}
CASES: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in strategies.STRATEGIES}
CASES |= {
    "mimic at clients": {"strategy": "mimic", "option": ("memory=client",)},
    "fedlaavg at clients": {"strategy": "fedlaavg", "option": ("memory=client",)},
    "mifa in a file": {"strategy": "mifa", "option": ("table-memory=0",)},
    "scheme-c with reboot": {"strategy": "scheme-c", "option": ("reboot=auto",)},
    "layers": {"strategy": "fedavg", "server_opt": "adam", "amplify": "4,1.5"},
    "a strategy of Flower": {"strategy": "flwr.server.strategy.FedYogi:eta=0.05"},
    "late replies": {"strategy": "fedbuff", **LATE},
    "late replies to packed updates": {"strategy": "efl", **LATE},
}


def told(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run, without how long things took."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records_in(path)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_five_times(case: str, tmp_path: Path) -> None:
    """Three times in the middle of a round, twice while a checkpoint is written."""
    settings = Settings(**{**COMMON, **CASES[case], "run_dir": str(tmp_path)})
    rng = np.random.default_rng([*case.encode()])
    whole, path = tmp_path / "whole", tmp_path / "killed"
    simulate(replace(settings, checkpoint_every=-1), whole)
    kills = 0
    for lines, sync in zip([*np.sort(rng.integers(2, ROUNDS, 3)), 99, 99], [0, 0, 0, 3, 6], strict=True):
        now = settings if not path.exists() else replace(settings, resume=str(path))
        kills += kill_after(start(now, path, sync), path / "metrics.jsonl", int(lines))
    process = start(replace(settings, resume=str(path)), path)
    process.join()
    assert process.exitcode == 0
    assert kills >= 3
    ends = [json.loads((folder / "summary.json").read_text()) for folder in (whole, path)]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"]
    assert told(path) == told(whole)
    different = {"run_dir", "seconds"}
    assert {k: v for k, v in ends[0].items() if k not in different} == {
        k: v for k, v in ends[1].items() if k not in different
    }
    assert len([*(path / "checkpoint").glob("round-*")]) <= 2
    assert not [*(path / "checkpoint").glob(".*")]
