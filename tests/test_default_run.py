"""The first run of a newcomer, `python sim.py` without flags: it learns and stays there."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import sim
from fedtide.config import Settings

DEFAULTS = Settings()


def test_the_default_run_climbs_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert sim.main([]) == 0
    assert "--strategy fedavg mifa" in capsys.readouterr().out.splitlines()[-1]
    (log,) = tmp_path.glob("runs/*/metrics.jsonl")
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    accuracies = [record["accuracy"] for record in records]
    assert len(accuracies) == DEFAULTS.num_rounds + 1
    drops = [before - after for before, after in pairwise(accuracies[30:])]
    assert max(drops) <= 0.05
    assert accuracies[-1] > 0.94

    # In most rounds clients are offline or drop out, and others leave work unfinished.
    rounds = records[1:]
    inactive = sum(len(record["active"]) < DEFAULTS.num_clients for record in rounds)
    incomplete = sum(min(record["steps"]) < DEFAULTS.local_steps for record in rounds)
    assert min(inactive, incomplete) > len(rounds) / 2
