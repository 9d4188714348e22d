"""Runs that stop before their last round: where, and that they go on as if they had not."""

import json
from pathlib import Path
from typing import Any

import pytest

import sim
from fedtide.config import Settings
from fedtide.engine.read_run import read_run
from fedtide.engine.run_files import records_in
from fedtide.engine.stopping import StoppingRule, slow_evaluation
from fedtide.plan import Plan
from fedtide.runs import outcome
from fedtide.tasks import ACCURACY, Metric

SMALL = ["--client-gpus=0", "--model=logistic", "--num-clients=4", "--local-steps=4", "--no-report"]
ERROR = Metric("mean-absolute-error", higher_is_better=False, is_share=False)


def stopped_in(rule: StoppingRule, key: str, values: list[float | None]) -> int | None:
    """The round whose record makes the rule end a run, of records that begin with round 0."""
    for server_round, value in enumerate(values):
        rule.round({"round": server_round} | ({key: value} if value != -1 else {}))
        if rule.reason:
            return server_round
    return None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"train": 19.0, "evaluate": 20.0}, True),
        ({"train": 21.0, "evaluate": 20.0}, False),
        ({"train": 1.0, "evaluate": 20.0}, False),  # short
        ({"train": 40.0}, False),
    ],
)
def test_advice_where_evaluation_takes_most_of_the_time(seconds: dict[str, float], said: bool) -> None:
    settings = Settings(evaluate_every=5, num_clients=4, trace="always")
    assert ("--evaluate-every 50" in slow_evaluation(seconds, settings, Plan.of(settings).trace)) == said


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        ({"trace": "bernoulli:p=0.3", "evaluate_every": 1}, "--evaluate-every 10"),
        ({"trace": "periodic:period=50", "evaluate_every": 1}, "--evaluate-every 9"),
        ({"trace": "periodic:period=50", "evaluate_every": 9}, ""),  # five in a cycle
        ({"trace": "periodic:period=50", "num_rounds": 99}, "--evaluate-every 10"),
        ({"trace": "phones", "round_ends": 3}, "--evaluate-every 10"),
        ({"trace": "phones", "evaluate_seconds": 600.0, "round_ends": 3}, "--evaluate-seconds 6000"),
        ({"trace": "phones", "evaluate_seconds": 3000.0}, "--evaluate-seconds 17280"),
    ],
)
def test_rarer_evaluations_still_cover_a_cycle_evenly(settings: Any, advised: str) -> None:
    made = Settings(**{"num_clients": 10, "num_rounds": 300} | settings)
    said = slow_evaluation({"evaluate": 40.0}, made, Plan.of(made).trace)
    assert said.endswith(advised)
    assert bool(said) == bool(advised)


def test_a_target_is_reached_in_an_evaluation_that_is_due() -> None:
    """Not in one that was made because a signal ended the run: here in round 3, which -1 is not due."""
    accuracies = [0.1, -1, 0.5, 0.95, 0.8, -1, 0.9]
    every_2 = {"evaluate_every": 2, "stop_at": "accuracy=0.9"}
    assert stopped_in(StoppingRule(Settings(**every_2)), "accuracy", accuracies) == 6
    assert stopped_in(StoppingRule(Settings(stop_at="accuracy=0.9")), "accuracy", accuracies) == 3
    errors = [9.0, 7.0, 4.0, 5.0]
    assert (
        stopped_in(StoppingRule(Settings(stop_at="mean-absolute-error=4"), [ERROR]), ERROR.key, errors) == 2
    )
    worst = Settings(stop_at="worst-client=0.4", evaluate_clients=3)
    assert stopped_in(StoppingRule(worst), "worst_client_accuracy", [0.0, 0.9, 0.9, 0.5]) == 3


def test_patience_counts_evaluations_without_improvement() -> None:
    """Of the metric, or of what `stop-at` names; an equal value is none, and neither is NaN."""
    patient = Settings(patience=3)
    assert stopped_in(StoppingRule(patient), "accuracy", [0.1, 0.5, 0.4, 0.5, 0.3]) == 4
    assert stopped_in(StoppingRule(patient), "accuracy", [0.1, 0.5, 0.4, 0.5, 0.6, 0.5, None, 0.6]) == 7
    assert stopped_in(StoppingRule(patient), "accuracy", [0.1, 0.5, 0.4, -1, 0.5, -1, 0.3]) == 6
    losses = StoppingRule(Settings(patience=2, stop_at="loss=0.1"))
    assert stopped_in(losses, "loss", [2.3, 2.0, 1.9, 1.9, 1.95]) == 4
    assert "the best is 1.9 in round 2" in losses.reason
    metrics = [ACCURACY, Metric("hamming_loss", higher_is_better=False)]
    hamming = StoppingRule(Settings(patience=2, stop_at="hamming_loss=0.1"), metrics)
    assert stopped_in(hamming, "hamming_loss", [0.5, 0.4, 0.3, 0.35, 0.3]) == 4


def test_in_event_time_evaluations_are_due_by_the_clock() -> None:
    rule = StoppingRule(Settings(stop_at="accuracy=0.5", evaluate_seconds=100.0))
    for server_round, seconds in enumerate([60.0, 90.0, 110.0], start=1):
        assert not rule.reason
        rule.recall({"round": server_round, "virtual_seconds": seconds, "accuracy": 0.7})
    assert rule.reason == "stop-at: accuracy 0.7 in round 3"


STOPS = {
    "mimic:memory=client": ["--stop-at=accuracy=0.6"],
    "scaffold": ["--patience=1", "--evaluate-every=3", "--learning-rate=2"],
    "fedbuff": ["--until-seconds=1e-9", "--trace=phones:cost=30", "--round-ends=2"],
}


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of a run, and its records without what a clock has measured."""
    assert sim.main([*SMALL, "--num-rounds=25", *arguments]) == 0
    (summary,) = folder.glob("*/summary.json")
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in records_in(summary.parent)]
    return json.loads(summary.read_text()), records


@pytest.mark.parametrize("method", STOPS)
def test_a_stopped_run_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    stop_and_go_on(method, tmp_path, "--engine=inline")


@pytest.mark.slow
def test_a_stopped_run_on_ray_goes_on_with_the_same_bits(ray_cluster: None, tmp_path: Path) -> None:
    stop_and_go_on("fedbuff", tmp_path, "--engine=ray", "--num-workers=1")


def stop_and_go_on(method: str, tmp_path: Path, *engine: str) -> None:
    setting, *others = STOPS[method]
    arguments = [f"--strategy={method}", *others, *engine]
    whole, records = run(tmp_path / "whole", *arguments, f"--run-dir={tmp_path / 'whole'}")
    there = [*arguments, f"--run-dir={tmp_path / 'stopped'}"]
    first, before = run(tmp_path / "stopped", *there, setting)
    name = setting.removeprefix("--").partition("=")[0]
    assert first["stopped"].startswith(f"{name}: ")
    assert outcome(read_run(Path(first["run_dir"]))) == f"finished ({name})"
    assert (first["interrupted"], 0 < first["rounds"] < 25) == (False, True)
    assert before == records[: first["rounds"] + 1]
    again, same = run(tmp_path / "stopped", f"--resume={first['run_dir']}")
    assert (again["stopped"].partition(":")[0], same) == (name, before)
    off = {"stop-at": "--stop-at=", "patience": "--patience=0", "until-seconds": "--until-seconds=0"}
    after, longer = run(tmp_path / "stopped", f"--resume={first['run_dir']}", off[name])
    assert longer == records
    assert "stopped" not in after
    assert after["weights_sha256"] == whole["weights_sha256"]
