"""The availability patterns of the papers against their definitions: 10,000 clients, 1,000 rounds.

Limits are five standard deviations (six if a distribution is only roughly normal). Seeds are fixed, so that a
test either always holds or never.
"""

import json
import math
from importlib.resources import files
from statistics import NormalDist

import numpy as np
import pytest
from golden_cases import cases

from traces import TRACES, Pools, finished_steps
from traces.patterns.completions import POOLS, Stragglers, measured_completions
from traces.patterns.markov import Markov
from traces.patterns.mimic import Levels, RoundRobin, TimeVarying
from traces.patterns.sleep import Sleep
from traces.patterns.turns import Diurnal, Periodic

N, ROUNDS = 10_000, 1000
SIGMAS = 5


def online(trace, rounds=range(1, ROUNDS + 1)):
    """Who is online, shape (rounds, N)."""
    return np.array([trace.round(t).online for t in rounds])


def counts(trace):
    """Who is online, and the numbers of online clients per round and of rounds online per client."""
    seen = np.empty((ROUNDS, trace.num_clients), bool)
    for t in range(1, ROUNDS + 1):
        now = trace.round(t)
        assert now.member.all()
        assert np.array_equal(now.completion, now.online.astype(np.float32))  # online clients complete
        seen[t - 1] = now.online
    return seen, seen.sum(axis=1), seen.sum(axis=0)


def assert_distribution(seen, mean, variance, sigmas=SIGMAS):
    """Many independent counts, their mean and their variance are as this distribution predicts."""
    mean, variance = np.broadcast_to(mean, seen.shape), np.broadcast_to(variance, seen.shape)
    certain = variance == 0
    assert np.array_equal(seen[certain], mean[certain])
    z = (seen - mean)[~certain] / np.sqrt(variance[~certain])
    n = len(z)
    assert np.abs(z).max(initial=0) < sigmas + 1  # the largest of up to 10,000
    assert abs(z.sum()) <= sigmas * math.sqrt(n)
    if n >= 20:  # the chi-squared distribution of few is far from normal
        assert abs((z**2).sum() - n) <= sigmas * math.sqrt(2 * n)


def assert_binomial(seen, p):
    """Clients are online with probability p, shape (rounds, N), independently in each round."""
    p = np.broadcast_to(p, seen.shape)
    for axis in (0, 1):
        assert_distribution(seen.sum(axis=axis), p.sum(axis=axis), (p * (1 - p)).sum(axis=axis))
    together = seen[1:] & seen[:-1]
    assert together.mean() == pytest.approx((p[1:] * p[:-1]).mean(), abs=0.002)


def assert_uniform(seen):
    """On 0..1: the Dvoretzky-Kiefer-Wolfowitz bound for a probability of 1e-6."""
    distance = np.abs(np.sort(seen) - (np.arange(len(seen)) + 0.5) / len(seen)).max()
    assert distance < math.sqrt(math.log(2e6) / (2 * len(seen))) + 0.5 / len(seen)


ROUND = np.arange(ROUNDS)[:, None]


@pytest.mark.parametrize(
    ("name", "options", "p"),
    [
        ("always", {}, 1.0),
        ("lost", {}, 1.0),
        ("bernoulli", {"p": 0.3}, 0.3),
        ("levels", {"lowest": 0.2}, np.array([0.2, 0.4, 0.6, 0.8, 1.0])[np.arange(N) % 5]),
        (
            "sine",
            {"period": 24.0, "mean": 0.4, "amplitude": 0.3},
            0.4 + 0.3 * np.sin(2 * np.pi * ROUND / 24),
        ),
    ],
)
def test_independent_draws(name, options, p):
    seen, *_ = counts(TRACES[name](N, 3, **options))
    assert_binomial(seen, p)


def test_levels_never_leave_fewer_than_two():
    count = online(Levels(4, 3, lowest=0.0), range(1, 300)).sum(axis=1)
    assert count.min() == 2
    assert online(Levels(1, 3, lowest=0.0), range(1, 9)).all()


def test_lost_replies():
    trace = TRACES["lost"](N, 3, p=0.05)
    assert_binomial(np.array([trace.lost(t) for t in range(1, ROUNDS + 1)]), 0.05)


@pytest.mark.parametrize(("n", "share"), [(N, 0.1), (100, 0.29), (N, 0.5), (100, 1.0)])
def test_time_varying(n, share):
    """The number is exact, and at least one."""
    _, by_round, by_client = counts(TimeVarying(n, 3, share=share))
    assert (by_round == round(n * share)).all()
    assert_distribution(by_client, ROUNDS * share, ROUNDS * share * (1 - share))
    assert (online(TimeVarying(5, 3, share=0.1), range(1, 50)).sum(axis=1) == 1).all()


def test_time_varying_draws_by_weight():
    # The first clock to ring belongs to client i with probability a_i / sum: so for successive draws, too.
    rounds, n = 4000, 6
    trace = TimeVarying(n, 3, share=1 / n)
    picked, expected = np.zeros(n), np.zeros(n)
    for t in range(1, rounds + 1):
        weights = trace.rng("time-varying", t).random(n, np.float32) * 9 + 1
        order = np.argsort(weights)
        picked += trace.round(t).online[order]
        expected += weights[order] / weights.sum()
    assert picked / rounds == pytest.approx(expected / rounds, abs=4 * np.sqrt(0.25 / rounds))
    assert expected[0] < expected[-1] / 3


@pytest.mark.parametrize("tau_max", [20, 100])
def test_round_robin(tau_max):
    """Once in each cycle of tau rounds, in a uniform phase: in a round with probability 1 / tau."""
    trace = RoundRobin(N, 3, tau_max=tau_max)
    p = np.full(tau_max + 1, 1 / (tau_max + 1))
    p[0], p[1] = 0, 2 * p[1]  # a cycle of 0 rounds, like one of 1 round, is always online
    assert_distribution(np.bincount(trace.tau, minlength=tau_max + 1), N * p, N * p * (1 - p))
    seen, by_round, by_client = counts(trace)
    assert np.array_equal(by_client[ROUNDS % trace.tau == 0], (ROUNDS // trace.tau)[ROUNDS % trace.tau == 0])
    assert (np.abs(by_client - ROUNDS / trace.tau) < 1).all()
    mean, variance = (1 / trace.tau).sum(), (1 / trace.tau * (1 - 1 / trace.tau)).sum()
    assert (np.abs(by_round - mean) < (SIGMAS + 1) * math.sqrt(variance)).all()
    for tau in (1, 2, 7, 20):
        of_tau = seen[: ROUNDS // tau * tau, trace.tau == tau].reshape(ROUNDS // tau, tau, -1)
        assert (of_tau.sum(axis=1) == 1).all()
        assert (of_tau == of_tau[0]).all()  # always in the same phase
        turns, members = of_tau[0].sum(axis=1), of_tau.shape[2]
        assert (np.abs(turns - members / tau) <= SIGMAS * math.sqrt(members / tau)).all()  # they take turns


def test_round_robin_half_normal():
    trace = RoundRobin(N, 3, tau_max=5, variant="half-normal")
    z = NormalDist()
    up_to = np.array([0, *(2 * z.cdf((k + 0.5) / 3) - 1 for k in range(1, 5)), 1])  # P(round(3 |z|) <= k)
    p = np.diff(up_to, prepend=0)
    assert_distribution(np.bincount(trace.tau, minlength=6), N * p, N * p * (1 - p))
    _, by_round, by_client = counts(trace)
    assert np.array_equal(by_client, -(-ROUNDS // trace.tau))
    assert by_round[0] == N
    # It never leaves fewer than two.
    seeds = [s for s in range(60) if (RoundRobin(3, s, variant="half-normal").tau > 1).all()]
    assert seeds
    for seed in seeds[:5]:
        trace = RoundRobin(3, seed, variant="half-normal")
        assert online(trace, range(1, 40)).sum(axis=1).min() == 2


def pytest_generate_tests(metafunc):
    if "schedule" in metafunc.fixturenames:
        known = {"diurnal", "alternate"}
        found = [case for _, case in cases(metafunc.config) if case.get("kind") in known]
        metafunc.parametrize("schedule", found, ids=[case["id"] for case in found])


def test_golden_schedule(schedule):
    args = schedule["args"]
    if schedule["kind"] == "diurnal":
        group = args["group"]
        assert group == sorted(group)  # the first groups come first, as in the trace
        trace = Diurnal(len(group), 0, period=args["E"], groups=group.count(0), of=len(group))
    else:
        trace = Diurnal(2, 0, period=args["t1"], rest_period=args["t2"], groups=1, of=2)
    assert online(trace, range(1, args["rounds"] + 1)).astype(int).tolist() == schedule["expect"]


def test_diurnal():
    _, by_round, by_client = counts(TRACES["diurnal"](N, 3, period=50, groups=3))
    first = np.arange(ROUNDS) // 50 % 2 == 0
    assert np.array_equal(by_round, np.where(first, 0.3 * N, 0.7 * N))
    assert (by_client == ROUNDS / 2).all()


def test_five_groups_take_turns():
    trace = Periodic(250, 3)  # 5 groups, 20 rounds
    assert np.bincount(trace.group).tolist() == [50] * 5
    seen = online(trace, range(1, 101))
    for members in (trace.group == g for g in range(5)):
        together = seen[:, members]
        assert (together == together[:, :1]).all()
        assert (np.convolve(together[:, 0], np.ones(20), "valid") == 4).all()  # in any 20 rounds in a row
    assert (seen.sum(axis=1) == 50).all()
    turns = trace.group[np.argmax(seen, axis=1)]
    changes = np.flatnonzero(np.diff(turns)) + 1
    assert changes[0] == 4 - trace.offset
    assert np.array_equal(np.diff(changes), np.full(len(changes) - 1, 4))
    assert turns[changes][:6].tolist() == [1, 2, 3, 4, 0, 1]
    assert turns[0] == 0
    count = np.bincount([Periodic(5, seed, groups=2, period=8).offset for seed in range(2000)])
    assert len(count) == 4
    assert np.abs(count - 500).max() < 5 * np.sqrt(2000 * 3 / 16)  # uniform


def test_sleep():
    """Eight hours a day in one piece, 33 or 34 rounds of 100, from a uniform hour on."""
    trace = Sleep(N, 3, period=100)
    _, by_round, by_client = counts(trace)
    assert (np.abs(by_client - ROUNDS / 3) <= 10).all()
    assert_distribution(by_round[:100:34], N / 3, N * 2 / 9)
    assert_uniform(trace.begin / 86400)
    day = online(Sleep(N, 3, period=240), range(1, 250))
    assert (day[:240].sum(axis=0) == 80).all()
    assert (day[:240] & ~np.roll(day[:240], 1, axis=0)).sum(axis=0).tolist() == [1] * N
    assert day.mean(axis=1) == pytest.approx(1 / 3, abs=0.03)
    assert np.array_equal(day[240:], day[:9])


@pytest.mark.parametrize(("on", "off"), [(20.0, 60.0), (5.0, 2.0), (1.5, 1.2)])
def test_markov(on, off):
    trace = Markov(N, 3, on=on, off=off)
    share, memory = on / (on + off), 1 - 1 / on - 1 / off
    seen = online(trace)
    assert_distribution(seen[:1].sum(axis=1), N * share, N * share * (1 - share))
    before, now = seen[:-1], seen[1:]
    for state, leaves in ((True, 1 / on), (False, 1 / off)):
        in_state = (before == state).sum(axis=1)
        left = ((before == state) & (now != state)).sum(axis=1)
        assert_distribution(left, in_state * leaves, in_state * leaves * (1 - leaves))
    # A client's rounds online: the correlation of two rounds is `memory` to the power of their distance.
    apart = np.arange(1, ROUNDS)
    variance = share * (1 - share) * (ROUNDS + 2 * ((ROUNDS - apart) * memory**apart).sum())
    assert_distribution(seen.sum(axis=0), ROUNDS * share, variance, sigmas=6)


def test_markov_of_one_round_alternates():
    seen = online(Markov(1000, 3, on=1, off=1), range(1, 40))
    assert (seen[1:] != seen[:-1]).all()


def test_a_share_of_the_clients_does_a_uniform_number_of_epochs():
    trace = Stragglers(2000, 0, share=0.9, epochs=5)
    rounds = [trace.round(t) for t in range(1, 11)]
    assert all(now.member.all() and now.online.all() for now in rounds)
    steps = np.concatenate([finished_steps(now.completion, 5) for now in rounds])
    count = np.bincount(steps, minlength=6)
    assert count[0] == 0
    expected = np.array([0.18, 0.18, 0.18, 0.18, 0.18 + 0.1]) * 20_000  # of the epochs 1 to 5
    assert np.abs(count[1:] - expected).max() < 5 * np.sqrt(expected.max())


@pytest.mark.parametrize("first", [5, 8])
def test_pools(first):
    trace = TRACES["pools"](N, 3, first=first)
    size = np.bincount(trace.pool, minlength=first)
    assert_distribution(size, N / first, N / first * (1 - 1 / first))
    total, square, least, full = (np.zeros(first) for _ in range(4))
    floor = np.array([pool.floor for pool in POOLS], np.float32)[trace.pool] / np.float32(100)
    for t in range(1, ROUNDS + 1):
        now = trace.round(t)
        assert now.online.all()
        for sums, values in (
            (total, now.completion),
            (square, now.completion.astype(float) ** 2),
            (least, now.completion == floor),
            (full, now.completion == 1),
        ):
            sums += np.bincount(trace.pool, values, minlength=first)
    draws = size * ROUNDS
    for j, pool in enumerate(POOLS[:first]):
        if not pool.sd:
            assert full[j] == draws[j]
            continue
        z = NormalDist(pool.mean / 100, pool.sd / 100)
        p_least, p_full = z.cdf(pool.floor / 100), 1 - z.cdf(1)
        assert_distribution(least[j : j + 1], draws[j] * p_least, draws[j] * p_least * (1 - p_least))
        assert_distribution(full[j : j + 1], draws[j] * p_full, draws[j] * p_full * (1 - p_full))
        # The distribution of one draw, by the midpoint rule over the quantiles of z.
        quantiles = np.array([z.inv_cdf(q) for q in (np.arange(20_000) + 0.5) / 20_000])
        drawn = np.clip(quantiles, pool.floor / 100, 1)
        assert_distribution(total[j : j + 1], draws[j] * drawn.mean(), draws[j] * drawn.var())
        assert_distribution(square[j : j + 1], draws[j] * (drawn**2).mean(), draws[j] * (drawn**2).var())


def test_the_table_of_the_paper():
    assert [pool.sd for pool in POOLS] == [0, 14.8, 11.3, 11.7, 14.8, 23.3, 22.3, 18.3]
    assert [pool.floor > 0 for pool in POOLS] == [True] * 5 + [False] * 3
    assert [pool.name.split("-")[0] for pool in POOLS] == ["cpu"] * 5 + ["bandwidth"] * 3
    assert all(0 < pool.mean <= 100 for pool in POOLS)


def test_measured_pools_compared_with_the_paper():
    table = json.loads(files("traces.patterns").joinpath("pools_measured.json").read_text())
    assert [pool["name"] for pool in table["pool"]] == [pool.name for pool in POOLS[:5]]
    assert {"machine", "date", "command"} <= table.keys()
    for pool, shares, paper in zip(table["pool"], measured_completions() * 100, POOLS, strict=False):
        assert shares.mean() == pytest.approx(pool["mean"], abs=0.01)
        assert shares.std(ddof=1) == pytest.approx(pool["sd"], abs=0.01)
        assert shares.min() > 0  # "these traces do not contain zero epochs"
        assert shares.max() <= 100
        # The share of the core left by the load; the competitors took the share that they should.
        assert shares.mean() == pytest.approx(paper.mean, abs=5)
        assert pool["taken"] == pytest.approx(100 - paper.mean, abs=3)


def test_completions_are_drawn_from_the_measured_ones():
    shares = measured_completions()
    trace = Pools(4000, 11, source="measured")
    assert np.array_equal(trace.pool, Pools(4000, 11, first=5).pool)
    assert np.array_equal(trace.pool, Pools(4000, 11, first=5, source="measured").pool)
    assert Pools(4000, 11, first=2, source="measured").pool.max() == 1
    completion = np.array([trace.round(t).completion for t in range(1, 41)])
    for j, own in enumerate(shares):
        drawn = completion[:, trace.pool == j].ravel()
        values, count = np.unique(own, return_counts=True)
        seen = (drawn[:, None] == values).sum(axis=0)
        assert seen.sum() == len(drawn)
        expected = count / len(own) * len(drawn)
        assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()
