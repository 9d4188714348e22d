"""The first run of a newcomer, `python sim.py` without flags: it learns and stays there."""

import json
from itertools import pairwise
from pathlib import Path

import sim
from fedtide.config import Settings

DEFAULTS = Settings()


def test_the_default_run_climbs_and_stays(tmp_path: Path) -> None:
    assert sim.main(["--engine=inline", "--client-gpus=0", f"--run-dir={tmp_path}"]) == 0
    (log,) = tmp_path.glob("*/metrics.jsonl")
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
