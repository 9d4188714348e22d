"""FedAU's weights: golden values, and known probabilities. By definition: test_strategies_definitions.py."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, N, Rounds, delta, make, play, work
from flwr.common import ndarrays_to_parameters
from golden_cases import cases

import strategies
from fedtide.config import Settings
from fedtide.federation import Federation
from strategies import Roster
from strategies.parts.participation import Intervals


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "weights_case" in metafunc.fixturenames:
        found = (case for _, case in cases(metafunc.config) if case["method"] == "fedau_weights")
        metafunc.parametrize("weights_case", [pytest.param(case, id=case["id"]) for case in found])


def test_golden_weights(weights_case: Any) -> None:
    """omega after every round."""
    there = np.array(weights_case["participation"], bool)
    intervals, clients = Intervals(weights_case["cutoff"]), np.arange(there.shape[1])
    for t, (present, expected) in enumerate(zip(there, weights_case["expect"], strict=True), start=1):
        np.testing.assert_allclose(intervals.means(clients, t), expected, rtol=1e-9)
        intervals.observe(clients[present], t)


def test_known_probabilities() -> None:
    """p_k / (probability of round t), whoever was there before."""
    known = np.array([0.5, 1.0, 0.25, 0.8, 0.1])
    roster = Roster(SIZES, participation=lambda t: known / t)
    strategy = strategies.make("fedau", ndarrays_to_parameters(START), roster, estimator="known")
    rounds = Rounds(strategy)
    play(rounds, [0, 1])
    before = strategy.weights.copy()
    moved = play(rounds, [2, 3]) - before
    p = SIZES / SIZES.sum()
    np.testing.assert_allclose(moved, sum(p[k] * 2 / known[k] * delta(k, 2) for k in (2, 3)), rtol=1e-12)


def test_a_late_reply_counts_by_the_probability_of_its_task() -> None:
    """That of the round in which it arrives may be 0, as for a device that is slower than its round."""
    roster = Roster(SIZES, participation=lambda t: np.full(N, 0.5 if t == 1 else 0.0))
    strategy = strategies.make("fedau", ndarrays_to_parameters(START), roster, estimator="known")
    rounds = Rounds(strategy)
    asked = rounds.ask([0, 1])
    before = rounds.hear((0, work(0, asked[0])))
    rounds.manager.working = [1]
    rounds.ask([])
    moved = rounds.hear((1, work(1, asked[1]))) - before
    np.testing.assert_allclose(moved, SIZES[1] / SIZES.sum() / 0.5 * delta(1, 1), rtol=1e-12)


@pytest.mark.parametrize("name", ["fedau", "fedstale"])
def test_known_probabilities_that_are_not_known(name: str) -> None:
    with pytest.raises(ValueError, match="use a trace that has them"):
        make(name, estimator="known")
    with pytest.raises(ValueError, match="set clients-per-round 0"):
        make(name, estimator="known", clients_per_round=2)


def test_traces_know_their_probabilities() -> None:
    for spec, expected in (
        ("bernoulli:p=0.3+lost:p=0.5", 0.15),
        ("always", 1.0),
        ("rates:p=0.2,dynamics=cyclic,cycle=7", 1 / 7),
        ("rates:p=0.2,dynamics=markov", 0.2),
    ):
        trace = Federation.of(Settings(trace=spec, num_clients=4, arrivals="3=2")).trace
        np.testing.assert_allclose(trace.participation(3), np.full(4, expected))
    assert Federation.of(Settings(trace="bernoulli+pools")).trace.participation(1) is None
