"""Clients with given rates: every kind of dynamics against its definition."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from golden_cases import cases
from test_traces_statistics import assert_distribution

from traces import TRACES, Combined, RoundAvailability, Trace
from traces.patterns.markov import Chains
from traces.rates import PROBABILITIES, RateTrace, label_rates

N, ROUNDS = 10_000, 1000
LEVELS = np.array([0.0, 0.02, 0.04, 0.048, 0.1, 0.3, 0.5, 0.97, 1.0])


@dataclass(frozen=True, kw_only=True)
class GivenRates(RateTrace, name="given"):
    """Clients whose rates are given."""

    p: np.ndarray = field(compare=False)

    @property
    def rates(self) -> np.ndarray:
        return self.p


def given_rates(p: np.ndarray, seed: int, **options: Any) -> GivenRates:
    return GivenRates(len(p), seed, p=p, **options)


def online(trace: Trace, rounds: range) -> np.ndarray:
    """Who is online, shape (rounds, N)."""
    return np.array([trace.round(t).online for t in rounds])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pattern" in metafunc.fixturenames:
        found = (case for _, case in cases(metafunc.config) if case["method"] == "participation")
        metafunc.parametrize("pattern", [pytest.param(case, id=case["id"]) for case in found])


class Wish(Trace):
    """Who would take part in each round."""

    def __init__(self, wish: list[list[int]]) -> None:
        self.num_clients, self.wish = len(wish[0]), np.array(wish, bool)

    def round(self, t: int) -> RoundAvailability:
        online = self.wish[t - 1].copy()
        return RoundAvailability(np.ones(self.num_clients, bool), online, online.astype(np.float32))


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
    elif kind == "min_separation":
        separation = TRACES["min-separation"](
            len(args["wish"][0]), 0, R=args["R"] + 1
        )  # rounds between, there
        seen = online(Combined(Wish(args["wish"]), separation), range(1, len(args["wish"]) + 1))
    else:
        trace = given_rates(p, 0, dynamics=kind)
        seen = [trace.participation(t) for t in rounds]
    np.testing.assert_allclose(seen, pattern["expect"], rtol=1e-12, atol=1e-15)


def test_one_rate_or_a_range():
    assert TRACES["rates"](5, 3, p=0.3).rates.tolist() == [0.3] * 5
    assert TRACES["rates"](5, 3, p=0.0).rates.tolist() == [0.0] * 5
    p = np.sort(TRACES["rates"](N, 3, p=0.2, highest=0.7).rates)
    # Uniform on 0.2..0.7: the Dvoretzky-Kiefer-Wolfowitz bound for a probability of 1e-6.
    assert np.abs((p - 0.2) / 0.5 - (np.arange(N) + 0.5) / N).max() < np.sqrt(np.log(2e6) / (2 * N)) + 0.5 / N
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


def expected(dynamics: str, p: np.ndarray) -> np.ndarray:
    """Probabilities in each round, shape (ROUNDS, N)."""
    t = np.arange(ROUNDS)[:, None]
    wave = (0.3 * np.sin(2 * np.pi * t / 20) + 0.7) * p
    return {
        "bernoulli": np.ones_like(t) * p,
        "staircase": np.where(t // 10 % 2 == 1, 0.4, 1.0) * p,
        "sine": wave,
        "interleaved": np.where(wave < 0.1, 0.0, wave),
    }[dynamics]


@pytest.mark.parametrize("dynamics", PROBABILITIES)
def test_independent_draws(dynamics):
    trace = TRACES["rates"](2000, 3, p=0.05, highest=0.9, dynamics=dynamics)
    p = expected(dynamics, trace.rates)
    seen = online(trace, range(1, ROUNDS + 1))
    assert_distribution(seen.sum(axis=1), p.sum(axis=1), (p * (1 - p)).sum(axis=1))
    assert_distribution(seen.sum(axis=0), p.sum(axis=0), (p * (1 - p)).sum(axis=0))
    together = seen[1:] & seen[:-1]  # rounds are independent of each other
    assert together.mean() == pytest.approx((p[1:] * p[:-1]).mean(), abs=0.002)


def transitions(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    seen = online(given_rates(p, 3, dynamics="markov"), range(1, ROUNDS + 1))
    of_level = seen.reshape(ROUNDS, len(LEVELS), -1)
    assert_distribution(of_level[0].sum(axis=1), 500 * LEVELS, 500 * LEVELS * (1 - LEVELS))
    before, now = seen[:-1], seen[1:]
    for state, leaves in ((False, come), (True, go)):
        in_state = ((before == state) * leaves).sum(axis=1)
        left = ((before == state) & (now != state)).sum(axis=1)
        assert_distribution(left, in_state, ((before == state) * leaves * (1 - leaves)).sum(axis=1))
        in_state = (before == state).sum(axis=0)
        left = ((before == state) & (now != state)).sum(axis=0)
        some = in_state > 20
        assert_distribution(
            left[some], (in_state * leaves)[some], (in_state * leaves * (1 - leaves))[some], sigmas=6
        )
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


def test_one_chain_for_all_and_a_chain_per_client_are_the_same():
    def draws(t: int) -> np.ndarray:
        return np.random.default_rng([3, t]).random(N, np.float32)

    for share, memory in ((0.4, 0.7), (0.02, -0.02 / 0.98), (0.5, 0.0)):
        arrays = (np.full(N, x, np.float32) for x in (share, memory))
        one, many = Chains(draws, share, memory), Chains(draws, *arrays)
        for t in range(1, 70):
            # A draw between a probability in float32 and the same in float64 is possible, but rare.
            assert np.count_nonzero(one.online(t) != many.online(t)) <= 1


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
        inactive = length[level] - active[level]
        z = (offset[level :: len(LEVELS)] - (inactive - 1) / 2).sum() / np.sqrt(
            400 * max(inactive**2 - 1, 1) / 12
        )
        assert abs(z) < 5
    assert len(np.unique(offset[p == 0.1])) > 85  # of 90


def test_cyclic_rounds_halves_to_even():
    p = np.array([0.005, 0.015, 0.025, 0.125, 0.375, 0.995, 1.0])
    active, inactive, _ = given_rates(p, 3, dynamics="cyclic").cycles
    assert active.tolist() == [1, 2, 2, 12, 38, 100, 100]
    assert inactive.tolist() == [99, 98, 98, 88, 62, 1, 1]
    assert given_rates(np.array([0.256]), 3, dynamics="cyclic", cycle=10).cycles[0].tolist() == [3]
