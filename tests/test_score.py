"""The score of a run: which evaluations it is the mean of."""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtide
from fedtide.config import Settings
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
        length = cycle if 0 < 2 * cycle <= now else now / 10
        inside = [v for t, v in zip(rounds[: last + 1], values, strict=False) if t > now - length]
        assert score(rounds, values, cycle, last) == pytest.approx(fmean(inside or [values[last]]))


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
    assert cycle_of(Plan.of(Settings(trace=trace, num_clients=10)).trace) == pytest.approx(cycle)


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
        ("phones", {"evaluate_every": 100}, "try --evaluate-every 25"),
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
