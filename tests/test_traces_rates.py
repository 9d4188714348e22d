"""Clients with rates, given, drawn or of their labels: every kind of dynamics against its definition."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from golden_cases import cases
from test_traces_patterns import (
    ROUND,
    ROUNDS,
    N,
    assert_binomial,
    assert_distribution,
    assert_uniform,
    online,
)

from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES, Combined, RoundAvailability, Trace
from traces.rates import PROBABILITIES, RateTrace, label_rates

LEVELS = np.array([0.0, 0.02, 0.04, 0.048, 0.1, 0.3, 0.5, 0.97, 1.0])
L = 10


@dataclass(frozen=True, kw_only=True)
class GivenRates(RateTrace, name="given"):
    """Clients whose rates are given."""

    p: np.ndarray = field(compare=False)

    @property
    def rates(self) -> np.ndarray:
        return self.p


def given_rates(p, seed, **options):
    return GivenRates(len(p), seed, p=p, **options)


class Wish(Trace):
    """Who would take part in each round."""

    def __init__(self, wish):
        self.num_clients, self.wish = len(wish[0]), np.array(wish, bool)

    def round(self, t):
        online = self.wish[t - 1].copy()
        return RoundAvailability(np.ones(self.num_clients, bool), online, online.astype(np.float32))


def pytest_generate_tests(metafunc):
    if "pattern" in metafunc.fixturenames:
        found = [case for _, case in cases(metafunc.config) if case["method"] == "participation"]
        metafunc.parametrize("pattern", found, ids=[case["id"] for case in found])


def test_golden_pattern(pattern):
    kind, args = pattern["kind"], pattern["args"]
    rounds = range(1, args.get("rounds", 0) + 1)
    p = np.array(args.get("p", []))
    if kind == "label_probabilities":
        seen = label_rates(np.array(args["nu"]), np.array(args["phi"]), args["scale"], args["floor"])
    elif kind == "cyclic":
        trace = given_rates(p, 0, dynamics="cyclic", cycle=args["cycle"])
        trace.cycles[2][:] = args["offsets"]
        seen = online(trace, rounds)
    elif kind == "min_separation":  # R: rounds between, there
        wish = args["wish"]
        separation = TRACES["min-separation"](len(wish[0]), 0, R=args["R"] + 1)
        seen = online(Combined(Wish(wish), separation), range(1, len(wish) + 1))
    else:
        trace = given_rates(p, 0, dynamics=kind)
        seen = [trace.participation(t) for t in rounds]
    np.testing.assert_allclose(seen, pattern["expect"], rtol=1e-12, atol=1e-15)


def test_one_rate_or_a_range():
    assert TRACES["rates"](5, 3, p=0.3).rates.tolist() == [0.3] * 5
    assert TRACES["rates"](5, 3, p=0.0).rates.tolist() == [0.0] * 5
    p = TRACES["rates"](N, 3, p=0.2, highest=0.7).rates
    assert_uniform((p - 0.2) / 0.5)
    assert p.min() >= 0.2
    assert p.max() <= 0.7


def test_draws_of_one_kind_are_not_combined():
    other = given_rates(np.full(5, 0.5), 1, dynamics="staircase")
    with pytest.raises(ValueError, match="rates and given would draw the same"):
        Combined(TRACES["rates"](5, 1), other)
    both = Combined(TRACES["rates"](N, 1, p=0.5, dynamics="markov"), given_rates(np.full(N, 0.5), 1))
    with_markov = Combined(both, TRACES["markov"](N, 1), TRACES["bernoulli"](N, 1))
    assert both.round(3).online.mean() == pytest.approx(0.25, abs=0.02)  # independent
    assert with_markov.round(3).online.mean() == pytest.approx(0.0625, abs=0.01)


@pytest.mark.parametrize("dynamics", PROBABILITIES)
def test_independent_draws(dynamics):
    trace = TRACES["rates"](2000, 3, p=0.05, highest=0.9, dynamics=dynamics)
    wave = (0.3 * np.sin(2 * np.pi * ROUND / 20) + 0.7) * trace.rates
    factors = {"bernoulli": 1.0, "staircase": np.where(ROUND // 10 % 2 == 1, 0.4, 1.0)}
    p = {"sine": wave, "interleaved": np.where(wave < 0.1, 0.0, wave)}
    assert_binomial(online(trace), p[dynamics] if dynamics in p else factors[dynamics] * trace.rates)


def transitions(p):
    """FedAU's probabilities of coming back and of going offline, client by client."""
    come, go = np.zeros_like(p), np.ones_like(p)
    for k in np.flatnonzero(p):
        come[k], go[k] = 0.05, 0.05 * (1 / p[k] - 1)
        if go[k] > 1:
            come[k], go[k] = come[k] / go[k], 1.0
    return come, go


def test_markov_by_definition():
    p = np.repeat(LEVELS, 500)
    come, go = transitions(p)
    seen = online(given_rates(p, 3, dynamics="markov"))
    of_level = seen.reshape(ROUNDS, len(LEVELS), -1)
    assert_distribution(of_level[0].sum(axis=1), 500 * LEVELS, 500 * LEVELS * (1 - LEVELS))
    before, now = seen[:-1], seen[1:]
    for state, leaves in ((False, come), (True, go)):
        there = before == state
        for axis, sigmas in ((1, 5), (0, 6)):  # in each round, and of each client
            left = (there & (now != state)).sum(axis=axis)
            some = there.sum(axis=axis) > (20 if axis == 0 else -1)
            mean, variance = ((there * x).sum(axis=axis) for x in (leaves, leaves * (1 - leaves)))
            assert_distribution(left[some], mean[some], variance[some], sigmas)
    assert not of_level[:, 0].any()  # p = 0
    assert of_level[:, -1].all()  # p = 1
    rare = seen[:, go == 1]
    assert rare.any()
    assert not (rare[1:] & rare[:-1]).any()  # a rate below 1/21 leaves no two rounds in a row


def test_markov_has_no_memory_beyond_one_round():
    p = np.full(200_000, 0.3)
    come, go = (each[0] for each in transitions(p))
    trace = given_rates(p, 5, dynamics="markov")
    for t in (3, 4, 5, 6, 8, 33, 64, 513):  # rounds of any kind: powers of two, odd, ...
        now, last, older = (trace.round(s).online for s in (t, t - 1, t - 2))
        for state, comes in ((False, come), (True, 1 - go)):
            for earlier in (False, True):
                chosen = (last == state) & (older == earlier)
                seen = now[chosen].mean()
                assert abs(seen - comes) < 4.5 * np.sqrt(comes * (1 - comes) / chosen.sum()), (t, state)


def test_markov_has_the_rate_in_every_round():
    p = np.full(100_000, 0.1)
    trace = given_rates(p, 4, dynamics="markov")
    for t in (1, 2, 3, 100, 1023, 1024, 10**6):
        assert trace.round(t).online.mean() == pytest.approx(0.1, abs=5 * np.sqrt(0.09 / 100_000))


def test_cyclic_by_definition():
    p = np.tile(LEVELS, 400)
    trace = given_rates(p, 3, dynamics="cyclic")
    offset = trace.cycles[2]
    active = np.tile([1, 2, 4, 5, 10, 30, 50, 97, 100], 400)
    length = np.where(p == 1, 101, 100)
    assert offset.min() == 0
    assert (offset < length - active).all()
    seen = online(trace, range(1, 304))
    first = np.argmax(seen, axis=0)
    assert np.array_equal(first, offset)
    for k in range(90):  # from its first round on, a client is online and offline in turns of these lengths
        turns = np.tile(np.arange(length[k]) < active[k], 4)
        assert np.array_equal(seen[first[k] :, k], turns[: 303 - first[k]])
    for level in range(len(LEVELS)):
        inactive, own = length[level] - active[level], offset[level :: len(LEVELS)]
        z = (own - (inactive - 1) / 2).sum() / np.sqrt(400 * max(inactive**2 - 1, 1) / 12)
        assert abs(z) < 5
    assert len(np.unique(offset[p == 0.1])) > 85  # of 90


def test_cyclic_rounds_halves_to_even():
    p = np.array([0.005, 0.015, 0.025, 0.125, 0.375, 0.995, 1.0])
    active, inactive, _ = given_rates(p, 3, dynamics="cyclic").cycles
    assert active.tolist() == [1, 2, 2, 12, 38, 100, 100]
    assert inactive.tolist() == [99, 98, 98, 88, 62, 1, 1]
    assert given_rates(np.array([0.256]), 3, dynamics="cyclic", cycle=10).cycles[0].tolist() == [3]


# Rates by the labels of a client's data


def shares(num_clients, count=L):
    """Label shares of a Dirichlet partition with 0.1 for every label, shape (N, L)."""
    return np.random.default_rng(1).dirichlet(np.full(count, 0.1), num_clients)


def rates(nu, seed=3, **options):
    return TRACES["labels"](len(nu), seed, label_shares=nu, **options).rates


def phi(seed, count=L):
    """The weights of the labels: the rates of clients with one label each, unscaled."""
    return rates(np.eye(count), seed, floor=0.0, mean=1 / count)


def test_rates_by_definition():
    nu = shares(500)
    weights = phi(3)
    assert weights.sum() == pytest.approx(1)
    p = rates(nu, floor=0.05, mean=0.15)
    by_hand = [max(0.05, 0.15 * L * sum(nu[k, c] * weights[c] for c in range(L))) for k in range(500)]
    assert p == pytest.approx(np.minimum(by_hand, 1))
    assert p.min() == 0.05
    assert rates(np.full((3, L), 1 / L), mean=0.3) == pytest.approx(0.3)
    # Of many labels, some are cut at 1.
    unscaled = phi(3, 100) * 100 * 0.1
    assert unscaled.max() > 1
    assert rates(np.eye(100)) == pytest.approx(np.clip(unscaled, 0.02, 1))
    assert rates(np.eye(100)).max() == 1
    with pytest.raises(ValueError, match="label shares of 4 clients are given, for 5 clients"):
        TRACES["labels"](5, 1, label_shares=shares(4))


def test_weights_are_dirichlet():
    # Dirichlet(a) with a = 0.1 for each of L labels: mean 1 / L, variance (1 / L) (1 - 1 / L) / (a L + 1).
    drawn = np.array([phi(seed) for seed in range(3000)])
    assert drawn.mean(axis=0) == pytest.approx(1 / L, abs=5 * np.sqrt(0.045 / 3000))
    assert drawn.var() == pytest.approx(0.045, rel=0.05)


def test_fedawe_rates():
    drawn = np.array([rates(np.eye(5), seed, phi="uniform") for seed in range(3000)])
    for label, highest in enumerate([1, 1, 0.5, 0.5, 0.5]):  # the first half of an odd number is rounded down
        values = drawn[:, label]
        assert values.min() < 0.01  # no floor
        assert 0.98 * highest < values.max() <= highest
        assert values.mean() == pytest.approx(highest / 2, abs=5 * highest / np.sqrt(12 * 3000))
    nu = shares(50, count=5)
    assert rates(nu, 7, phi="uniform") == pytest.approx(nu @ drawn[7])


@pytest.mark.parametrize("dynamics", ["interleaved", "markov", "cyclic"])
def test_labels_drive_any_dynamics(dynamics):
    nu = shares(2000)
    trace = TRACES["labels"](2000, 3, label_shares=nu, dynamics=dynamics)
    same = given_rates(rates(nu), 3, dynamics=dynamics)
    assert all(np.array_equal(trace.round(t).online, same.round(t).online) for t in (1, 6, 700))
    seen = online(trace, range(1, 2001)).mean(axis=0)
    likely = trace.rates > np.quantile(trace.rates, 0.9)
    assert seen[likely].mean() > 3 * seen[~likely].mean()


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "dirichlet:alpha=1"},
        {"partition": "dirichlet:alpha=1", "evaluate_on": "objective", "holdout": 0.4},
        {"partition": "label", "sizes": "pareto"},
        {"task": "synthetic"},
    ],
)
def test_rates_follow_the_data(changes: dict[str, Any]) -> None:
    """Label shares are counted one by one, held-out examples included."""
    chosen = Settings(trace="labels", num_clients=30, seed=4, **changes)
    federation = Federation.of(chosen)
    data, trace = federation.data, federation.trace
    nu = np.zeros((30, data.num_outputs))
    for k in range(30):
        labels = data.train_set(np.array([k]))[1].tolist()
        if "holdout" in changes:
            labels += data.holdout(np.array([k]))[1].tolist()
        for label in labels:
            nu[k, label] += 1 / len(labels)
    assert trace.rates == pytest.approx(rates(nu, 4))
    assert np.ptp(trace.rates) > 0.1
    assert np.array_equal(Federation.of(chosen.for_clients()).trace.rates, trace.rates)
