"""The score of a run: which evaluations it is the mean of."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtide
from fedtide.comparison.results import cost_to_reach
from fedtide.config import Settings
from fedtide.config.target import Target
from fedtide.engine.read_run import Run
from fedtide.engine.score import advice, cycle_of, score
from fedtide.plan import Plan


@given(
    rounds=st.lists(st.integers(0, 500), min_size=1, unique=True).map(sorted),
    cycle=st.sampled_from([0, 1, 7, 50, 144.5, 400]),
    data=st.data(),
)
def test_it_is_the_mean_of_the_last_cycle_or_the_last_tenth(
    rounds: list[int], cycle: float, data: st.DataObject
) -> None:
    """Of each evaluation as if it were the last one."""
    values = data.draw(st.lists(st.floats(0, 1), min_size=len(rounds), max_size=len(rounds)))
    for last, now in enumerate(rounds):
        begin = now - (cycle or now / 10)
        inside = [v for t, v in zip(rounds[: last + 1], values, strict=False) if t > begin]
        expected = math.nan if now < cycle else fmean(inside or [values[last]])
        assert score(rounds, values, cycle, last) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("trace", "cycle"),
    [
        ("bernoulli:p=0.3", 0),
        ("diurnal:period=50", 100),
        ("diurnal:period=50,rest-period=20", 70),
        ("periodic:groups=5,period=50", 50),
        ("sleep:period=120", 120),
        ("sine:period=24", 24),
        ("round-robin:tau-max=20", 20),
        ("labels:mean=0.3,dynamics=cyclic", 100),
        ("labels:mean=0.3,dynamics=staircase", 20),
        ("labels:mean=0.3+diurnal:period=10+sine:period=9", 20),
        ("phones", 86400),
        ("phones:round-seconds=60", 86400),
        ("sessions", 0),
    ],
)
def test_after_what_traces_repeat(trace: str, cycle: float) -> None:
    """In rounds or, with a clock, in virtual seconds."""
    settings = Settings(trace=trace, num_clients=10, num_rounds=10_000)
    assert cycle_of(Plan.of(settings).trace, settings) == pytest.approx(cycle)
    for short in (replace(settings, num_rounds=7), replace(settings, round_ends=3)):
        assert cycle_of(Plan.of(settings).trace, short) == 0
    late = replace(settings, round_ends=3, until=1e6)
    assert cycle_of(Plan.of(settings).trace, late) == pytest.approx(cycle)


@pytest.mark.parametrize("repeats", [math.nan, math.inf, -3, "x"])
def test_a_trace_that_says_nonsense_is_refused(repeats: Any) -> None:
    trace = Plan.of(Settings(trace="always", num_clients=4)).trace
    wrong = type("Odd", (type(trace),), {"repeats_after": repeats}, name="odd")(4, 0)
    with pytest.raises(ValueError, match=r"^trace odd: repeats_after is .*; it must be a finite number"):
        cycle_of(wrong, Settings())


def test_nothing_is_judged_before_the_first_cycle_is_over(tmp_path: Path) -> None:
    """The shift that is online reaches more, and then gets no better, than all do."""
    common: dict[str, Any] = {"task": "digits", "model": "logistic", "partition": "label:order=sorted"}
    common |= {"num_clients": 10, "trace": "diurnal:period=20,groups=2", "num_rounds": 200}
    common |= {"strategy": "fedavg", "engine": "inline", "report": "none", "progress": False}
    whole = fedtide.run(run_dir=str(tmp_path), **common)
    means = [fmean(r["accuracy"] for r in whole.records[t - 39 : t + 1]) for t in range(40, 201)]
    reached = 40 + next(t for t, mean in enumerate(means) if mean >= 0.6)
    assert max(r["accuracy"] for r in whole.records[:20]) > 0.2
    stopped = fedtide.run(run_dir=str(tmp_path), stop_at="accuracy=0.6", **common)
    target = Target.parse("0.6", "reach", needs_name=False)
    cost = cost_to_reach(whole, target)
    assert cost
    assert stopped.last_round == cost.rounds == reached
    patient = fedtide.run(run_dir=str(tmp_path), patience=10, **common)
    assert patient.last_round > 50


@pytest.mark.parametrize(
    ("trace", "settings", "says"),
    [
        ("bernoulli:p=0.3", {"evaluate_every": 10}, ""),
        ("periodic:period=50", {"evaluate_every": 10}, "of 50 rounds evenly: try --evaluate-every 9"),
        ("periodic:period=50", {"evaluate_every": 9}, ""),
        ("periodic:period=50", {}, ""),
        ("periodic:period=50", {"evaluate_every": 51}, "try --evaluate-every 9"),  # not one in each cycle
        ("periodic:period=50", {"num_rounds": 99}, "--num-rounds 100 helps"),
        ("periodic:period=5", {"evaluate_every": 5}, "try --evaluate-every 1"),
        ("phones", {"evaluate_every": 10}, ""),
        ("phones", {"num_rounds": 10}, ""),
        ("phones", {"evaluate_every": 100}, "try --evaluate-every 28"),
        ("phones", {"evaluate_every": 100, "round_ends": 3}, ""),
    ],
)
def test_evaluations_that_do_not_cover_a_cycle_are_said(trace: str, settings: Any, says: str) -> None:
    settings = Settings(**{"trace": trace, "num_clients": 10, "num_rounds": 300} | settings)
    said = advice(Plan.of(settings).trace, settings)
    assert bool(said) == bool(says)
    assert says in said


def test_evaluations_in_turns_have_one_score_at_any_phase(tmp_path: Path) -> None:
    """The last value depends on whose turn is over, and the score, over all turns, does not."""
    common: dict[str, Any] = {"task": "digits", "model": "logistic", "partition": "label:order=sorted"}
    common |= {"num_clients": 20, "local_steps": 5, "trace": "periodic:groups=5,period=50"}
    common |= {"engine": "inline", "report": "none", "progress": False, "learning_rate": 0.1}
    runs = [fedtide.run(num_rounds=100 + t, run_dir=str(tmp_path), **common) for t in (0, 3, 6)]
    finals, scores = [run.final for run in runs], [run.score() for run in runs]
    assert max(finals) - min(finals) > 0.1
    assert max(scores) - min(scores) < 0.03
    (one, *_) = runs
    assert one.score() == pytest.approx(fmean(record["accuracy"] for record in one.records[-50:]))
    assert one.summary["cycle"] == 50


def test_a_score_over_something_that_is_no_number_is_none() -> None:
    records: list[dict[str, Any]] = [{"round": t, "tested_examples": 9, "loss": 1.0} for t in range(1, 21)]
    run = Run(Path(), {}, {"final": {}}, [{**record, "accuracy": 0.5} for record in records])
    assert run.score() == 0.5
    records[-2] |= {"accuracy": None}
    records[-1] |= {"accuracy": 0.5}
    assert math.isnan(Run(Path(), {}, {"final": {}}, records).score())
    nobody = [
        {**record, "tested_examples": 0} if record["accuracy"] is None else record for record in records[-2:]
    ]
    assert Run(Path(), {}, {"final": {}}, nobody).score() == 0.5
    assert Run(Path(), {}, {"final": {}}, records).score("loss") == 1.0
