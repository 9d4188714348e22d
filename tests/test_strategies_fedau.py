"""FedAU: its weights against their definition, and what they are when everybody is there."""

from typing import Any

import numpy as np
import pytest
from fakes import SIZES, START, N, Rounds, delta, make, play
from flwr.common import ndarrays_to_parameters
from golden_cases import cases
from hypothesis import given
from hypothesis import strategies as st

import strategies
from clients.environment import make_trace
from flexfl.config import Settings
from strategies import Roster
from strategies.parts.participation import Intervals


def by_definition(there: list[bool], cutoff: int) -> list[float]:
    """omega before each round and after the last one (Wang & Ji 2024, Algorithm 2)."""
    omega, ended, since = 1.0, 0, 0
    means = [omega]
    for present in there:
        since += 1
        if present or since == cutoff:
            omega = since if not ended else (ended * omega + since) / (ended + 1)
            ended, since = ended + 1, 0
        means.append(omega)
    return means


def test_weights_are_those_of_the_definition() -> None:
    """1,000 clients with participation rates of their own, over 60 rounds, with and without a cut-off."""
    rng = np.random.default_rng(0)
    there = rng.random((60, 1000)) < rng.uniform(0.02, 1, 1000)
    clients = np.arange(1000)
    for cutoff in (0, 1, 3, 7, 50):
        intervals = Intervals(cutoff)
        got = []
        for t, present in enumerate(there, start=1):
            got.append(intervals.means(clients, t))
            intervals.observe(clients[present], t)
        got.append(intervals.means(clients, 61))
        expected = np.transpose([by_definition(column.tolist(), cutoff) for column in there.T])
        np.testing.assert_allclose(got, expected, rtol=1e-13)


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


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 8), st.integers(1, 20))
def test_intervals_begin_with_the_membership(there: list[bool], cutoff: int, joined: int) -> None:
    """A client that arrives in round `joined` has the weights of one that was there from round 1."""
    intervals, one = Intervals(cutoff), np.array([3])
    intervals.observe(one, 1)  # in an earlier membership
    intervals.reset(3, joined)
    for t, expected in enumerate(by_definition(there, cutoff)[:-1]):
        (got,) = intervals.means(one, joined + t)
        assert got == pytest.approx(expected, rel=1e-13)
        assert cutoff >= got
        if there[t]:
            intervals.observe(one, joined + t)


def test_always_present_is_fedavg() -> None:
    fedau, fedavg = Rounds(make("fedau")), Rounds(make("fedavg"))
    for _ in range(4):
        np.testing.assert_allclose(play(fedau), play(fedavg), rtol=1e-12)


def test_the_interval_that_ends_does_not_count_yet() -> None:
    """Client 0 is back after three rounds: it counts once, then three times."""
    rounds = Rounds(make("fedau", weights="uniform", cutoff=0))
    moved = []
    for online in ([0], [], [], [0], [0]):
        before = rounds.strategy.weights.copy()
        moved.append(rounds.play(dict.fromkeys(online, np.ones(9))) - before)
    np.testing.assert_allclose(np.array(moved)[:, 0] * N, [1, 0, 0, 1, 2])  # (1 + 3) / 2 = 2
    assert len(SIZES) == N


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
        trace = make_trace(Settings(trace=spec, num_clients=4, arrivals="3=2"))
        np.testing.assert_allclose(trace.participation(3), np.full(4, expected))
    assert make_trace(Settings(trace="bernoulli+pools")).participation(1) is None
