"""Departures, and the rates that restart with the objective (Ruan et al., sections 4.3 and 5.1), by hand."""

from typing import Any

import numpy as np
import pytest
from fakes import Rounds, collected
from flwr.common import ndarrays_to_parameters

import strategies
from strategies import SCHEDULES, Roster
from strategies.core.members import LossTracker, exclusion_pays


def federation(sizes: tuple[int, ...] = (1, 1, 2), name: str = "scheme-b", **options: Any) -> Rounds:
    start = ndarrays_to_parameters([np.zeros(1)])
    return Rounds(strategies.make(name, start, Roster(np.array(sizes)), **options))


def departures(rounds: Rounds) -> list[dict[str, Any]]:
    return [event for event in rounds.strategy.report.events if event["event"] == "departure"]


# What becomes of the objective


def test_excluded_client_leaves_the_shares() -> None:
    """(1, 1, 2)/4 becomes (1, 1)/2: a move of 1 by clients 0 and 1 is worth 1/2, then 1."""
    rounds = federation(departure="exclude")
    assert rounds.play({0: 1.0, 1: 1.0})[0] == pytest.approx(0.5)
    assert rounds.play({0: 1.0, 1: 1.0}, departed=[2])[0] == pytest.approx(1.5)
    assert rounds.strategy.roster.num_members == 2


def test_included_client_keeps_its_share() -> None:
    """It counts like an inactive one: 1/2, then 1/2."""
    rounds = federation(departure="include")
    rounds.play({0: 1.0, 1: 1.0})
    assert rounds.play({0: 1.0, 1: 1.0}, departed=[2])[0] == pytest.approx(1.0)
    assert rounds.strategy.roster.num_members == 3


@pytest.mark.parametrize(("departure", "expected"), [("include", 3 * 1 / 4), ("exclude", 2 * 1 / 2)])
def test_scheme_a_counts_members(departure: str, expected: float) -> None:
    """Only client 0 (n = 1) is complete: N p / K with N = 3, p = 1/4 or N = 2, p = 1/2."""
    rounds = federation(name="scheme-a", departure=departure)
    assert rounds.play({0: 1.0}, departed=[2])[0] == pytest.approx(expected)


def test_kept_client_comes_back_without_a_shift() -> None:
    """Its objective was there all the time: no boost, no restart of the rate."""
    rounds = federation(departure="include", lr_schedule=SCHEDULES["staircase"]())
    rounds.play({0: 0.0, 1: 0.0, 2: 0.0})
    rounds.play({0: 0.0}, departed=[2])
    assert rounds.play({2: 1.0}, arrived=[2])[0] == pytest.approx(0.5)
    assert rounds.strategy.roster.shift == 0


def test_departing_twice_is_departing_once() -> None:
    """The client says goodbye in round 1 and the trace has it leave in round 3: the shift is round 1."""
    rounds = federation()
    rounds.play({0: 0.0, 1: 0.0, 2: 0.0}, departing={2: True})
    rounds.play({0: 0.0})
    assert len(departures(rounds)) == 1
    rounds.play({0: 0.0}, departed=[2])
    assert departures(rounds) == []
    assert rounds.strategy.roster.shift == 1


# Corollary 4.0.3: exclude if T - tau_0 >= constant * sqrt(Gamma tau_0)


@pytest.mark.parametrize(
    ("remaining", "gamma", "shift", "constant", "expected"),
    [
        (5, 1.0, 5, 1.0, True),  # 5 >= 2.24
        (2, 1.0, 8, 1.0, False),  # 2 < 2.83
        (2, 0.5, 8, 1.0, True),  # 2 >= 2: the bound itself excludes
        (5, 1.0, 5, 3.0, False),  # 5 < 6.71
        (0, 0.0, 8, 1.0, True),  # its data are like the others': nothing is lost
    ],
)
def test_criterion(remaining: int, gamma: float, shift: int, constant: float, expected: bool) -> None:
    assert exclusion_pays(remaining, gamma, shift, constant) is expected


@pytest.mark.parametrize(("last", "objective", "remaining"), [(5, "exclude", 5), (8, "include", 2)])
def test_auto_weighs_the_remaining_rounds(last: int, objective: str, remaining: int) -> None:
    """Gamma = 1.2 - 0.2 = 1, T = 10. After 5 rounds 5 >= sqrt(5) are left, after 8 only 2 < sqrt(8)."""
    rounds = federation(departure="auto", departure_constant=1, num_rounds=10)
    for _ in range(last):
        rounds.play({0: 0.0, 2: 0.0}, train_loss={2: 1.2}, final_loss={2: 0.2})
    rounds.play({0: 0.0}, departed=[2])
    (event,) = departures(rounds)
    assert event["gamma"] == pytest.approx(1)
    assert event == {
        "event": "departure",
        "client": 2,
        "objective": objective,
        "remaining": remaining,
        "gamma": event["gamma"],
        "tau_0": last,
        "constant": 1.0,
    }
    assert rounds.strategy.roster.member[2] == (objective == "include")


@pytest.mark.parametrize(("num_rounds", "losses"), [(10, {}), (0, {2: 1.2})], ids=["no-loss", "no-end"])
def test_auto_excludes_where_it_cannot_know(num_rounds: int, losses: dict[int, float]) -> None:
    rounds = federation(departure="auto", num_rounds=num_rounds)
    for _ in range(8):
        rounds.play({2: 0.0}, train_loss=losses)
    rounds.play({0: 0.0}, departed=[2])
    assert departures(rounds)[0]["objective"] == "exclude"


@pytest.mark.parametrize(
    ("losses", "gammas"),
    [
        # Losses 2 and 1: running mean 0.3 * 1 + 0.7 * 2 = 1.7; lowest end 0.5
        ([(2.0, 0.5), (1.0, 0.9), (np.nan, np.inf)], [1.5, 1.2, 1.2]),
        # Without a final loss, F_l^* counts as 0; an end above the mean counts as Gamma = 0
        ([(2.0, np.nan), (2.0, 3.0)], [2, 0]),
    ],
)
def test_loss_tracker(losses: list[tuple[float, float]], gammas: list[float]) -> None:
    tracker = LossTracker()
    assert np.isnan(tracker.gammas(np.array([7, 3]))).all()
    for (train, final), gamma in zip(losses, gammas, strict=True):
        tracker.update(collected({7: np.zeros(1)}, np.zeros(1), train_loss=train, final_loss=final))
        np.testing.assert_allclose(tracker.gammas(np.array([7, 3])), [gamma, np.nan])


# Rates


def rates(rounds: Rounds, count: int, **events: dict[int, list[int]]) -> list[float]:
    """The rate that client 0 gets in each round."""
    got = []
    for t in range(1, count + 1):
        asked = rounds.ask([0], **{kind: plan.get(t, []) for kind, plan in events.items()})
        got.append(asked[0].config["learning-rate"])
        rounds.hear()
    return got


@pytest.mark.parametrize(
    ("departure", "expected"),
    [("exclude", [1, 1 / 2, 1, 1 / 2]), ("include", [1, 1 / 2, 1 / 3, 1 / 4])],
)
def test_staircase_restarts_with_the_objective(departure: str, expected: list[float]) -> None:
    """eta_0 / (tau - tau_0); client 2 departs in round 3."""
    rounds = federation(departure=departure, learning_rate=1.0, lr_schedule=SCHEDULES["staircase"]())
    assert rates(rounds, 4, departed={3: [2]}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sizes", "events", "expected"),
    [
        ((1, 1, 1), {"arrived": {3: [1], 4: [2]}}, [1, 1 / 2, 1, 1, 1 / 2]),
        ((1, 0), {"arrived": {2: [1]}, "departed": {4: [1]}}, [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
    ids=["each-arrival", "without-data"],
)
def test_staircase_restarts_at_arrivals(sizes: Any, events: dict[str, Any], expected: list[float]) -> None:
    """Client 0 is there from the start; one without data shifts nothing."""
    roster = Roster(np.array(sizes), np.arange(len(sizes)) == 0)
    start = ndarrays_to_parameters([np.zeros(1)])
    options = {"learning_rate": 1.0, "lr_schedule": SCHEDULES["staircase"]()}
    rounds = Rounds(strategies.make("fedavg", start, roster, **options))
    assert rates(rounds, len(expected), **events) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (SCHEDULES["constant"](), [2, 2, 2, 2]),
        (SCHEDULES["inverse-sqrt"](scale=1 / 3), [2, 1, 2 / 7**0.5, 2 / 10**0.5]),
        (SCHEDULES["staircase"](restart=False), [2, 1, 2 / 3, 1 / 2]),
        (SCHEDULES["geometric"](factor=0.5), [2, 1, 1 / 2, 1 / 4]),
        # 16 E / (mu E) / ((tau - tau_0) E + gamma) with E = 10, mu = 0.5, gamma = 10
        (SCHEDULES["theorem"](mu=0.5, gamma=10), [32 / 20, 32 / 30, 32 / 20, 32 / 30]),
        # and with E[sum p s] = 5: 16 * 10 / (0.5 * 5) = 64
        (SCHEDULES["theorem"](mu=0.5, gamma=10, work=5), [64 / 20, 64 / 30, 64 / 20, 64 / 30]),
    ],
    ids=["constant", "inverse-sqrt", "staircase", "geometric", "theorem", "theorem-work"],
)
def test_schedules(schedule: Any, expected: list[float]) -> None:
    """Client 2 departs in round 3; only the rate of the theorem restarts."""
    rounds = federation(learning_rate=2.0, local_steps=10, lr_schedule=schedule)
    assert rates(rounds, 4, departed={3: [2]}) == pytest.approx(expected)


def test_with_local_epochs_the_theorem_takes_the_mean_steps() -> None:
    """n = (1, 1, 2) in batches of 1, three epochs: E = (3 + 3 + 6) / 3 = 4."""
    theorem = SCHEDULES["theorem"](mu=0.5, gamma=10)
    rounds = federation(local_epochs=3, batch_size=1, local_steps=10, lr_schedule=theorem)
    assert rates(rounds, 2) == pytest.approx([32 / 14, 32 / 18])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("geometric", {"factor": 1.1}),
        ("inverse-sqrt", {"scale": 0.0}),
        ("theorem", {"mu": float("nan")}),
    ],
)
def test_schedules_refuse_values_out_of_range(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        SCHEDULES[name](**options)
