"""Every generator against its definition: 10,000 clients, 1,000 rounds, tolerances by the distribution.

Limits are five standard deviations (six if a distribution is only roughly normal). Seeds are fixed, so that a
test either always holds or never.
"""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from traces import TRACES, Trace
from traces.patterns.completions import POOLS
from traces.patterns.mimic import RoundRobin

N, ROUNDS = 10_000, 1000
SIGMAS = 5


def counts(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Number of online clients per round, shape (ROUNDS,), and of rounds online per client, shape (N,)."""
    by_round, by_client = np.zeros(ROUNDS), np.zeros(N)
    for t in range(1, ROUNDS + 1):
        now = trace.round(t)
        assert now.member.all()
        assert np.array_equal(now.completion, now.online.astype(np.float32))  # online clients complete
        by_round[t - 1] = now.online.sum()
        by_client += now.online
    return by_round, by_client


def assert_distribution(seen: np.ndarray, mean: Any, variance: Any, sigmas: float = SIGMAS) -> None:
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


def probabilities(name: str) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Options of a trace of independent draws; its probabilities as factors per round and per client."""
    rounds, clients = np.ones(ROUNDS), np.ones(N)
    if name == "bernoulli":
        return {"p": 0.3}, rounds * 0.3, clients
    if name == "levels":
        return {"lowest": 0.2}, rounds, np.array([0.2, 0.4, 0.6, 0.8, 1.0])[np.arange(N) % 5]
    if name == "sine":
        wave = 0.4 + 0.3 * np.sin(2 * np.pi * np.arange(ROUNDS) / 24)
        return {"period": 24.0, "mean": 0.4, "amplitude": 0.3}, wave, clients
    return {}, rounds, clients


@pytest.mark.parametrize("name", ["always", "lost", "bernoulli", "levels", "sine"])
def test_independent_draws(name):
    options, of_round, of_client = probabilities(name)
    by_round, by_client = counts(TRACES[name](N, 3, **options))
    p = np.multiply.outer(of_round, of_client)
    assert_distribution(by_round, p.sum(axis=1), (p * (1 - p)).sum(axis=1))
    assert_distribution(by_client, p.sum(axis=0), (p * (1 - p)).sum(axis=0))


def test_lost_replies():
    trace, p = TRACES["lost"](N, 3, p=0.05), 0.05
    by_round, by_client = np.zeros(ROUNDS), np.zeros(N)
    for t in range(1, ROUNDS + 1):
        lost = trace.lost(t)
        by_round[t - 1] = lost.sum()
        by_client += lost
    assert_distribution(by_round, N * p, N * p * (1 - p))
    assert_distribution(by_client, ROUNDS * p, ROUNDS * p * (1 - p))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_time_varying(share):
    by_round, by_client = counts(TRACES["time-varying"](N, 3, share=share))
    assert (by_round == N * share).all()
    assert_distribution(by_client, ROUNDS * share, ROUNDS * share * (1 - share))


@pytest.mark.parametrize("tau_max", [20, 50, 100])
def test_round_robin(tau_max):
    trace = RoundRobin(N, 3, tau_max=tau_max)
    p = np.full(tau_max + 1, 1 / (tau_max + 1))
    p[0], p[1] = 0, 2 * p[1]  # a cycle of 0 rounds, like one of 1 round, is always online
    assert_distribution(np.bincount(trace.tau, minlength=tau_max + 1), N * p, N * p * (1 - p))
    by_round, by_client = counts(trace)
    # Once in each cycle, in a uniform phase, so that a client is online in a round with probability 1 / tau.
    assert np.array_equal(by_client[ROUNDS % trace.tau == 0], (ROUNDS // trace.tau)[ROUNDS % trace.tau == 0])
    assert (np.abs(by_client - ROUNDS / trace.tau) < 1).all()
    mean, variance = (1 / trace.tau).sum(), (1 / trace.tau * (1 - 1 / trace.tau)).sum()
    assert (np.abs(by_round - mean) < (SIGMAS + 1) * math.sqrt(variance)).all()


def test_round_robin_half_normal():
    trace = RoundRobin(N, 3, tau_max=5, variant="half-normal")
    z = NormalDist()
    up_to = np.array([0, *(2 * z.cdf((k + 0.5) / 3) - 1 for k in range(1, 5)), 1])  # P(round(3 |z|) <= k)
    p = np.diff(up_to, prepend=0)
    assert_distribution(np.bincount(trace.tau, minlength=6), N * p, N * p * (1 - p))
    by_round, by_client = counts(trace)
    assert np.array_equal(by_client, -(-ROUNDS // trace.tau))
    assert by_round[0] == N


def test_diurnal():
    by_round, by_client = counts(TRACES["diurnal"](N, 3, period=50, groups=3))
    first = np.arange(ROUNDS) // 50 % 2 == 0
    assert np.array_equal(by_round, np.where(first, 0.3 * N, 0.7 * N))
    assert (by_client == ROUNDS / 2).all()


def test_sleep():
    trace = TRACES["sleep"](N, 3, period=100)
    by_round, by_client = counts(trace)
    assert (np.abs(by_client - ROUNDS / 3) <= 10).all()  # eight hours are 33 or 34 rounds of 100
    assert_distribution(by_round[:100:34], N / 3, N * 2 / 9)
    # Hours start uniformly: the Dvoretzky-Kiefer-Wolfowitz bound for a probability of 1e-6.
    begin = np.sort(trace.begin) / 86400
    distance = np.abs(begin - (np.arange(N) + 0.5) / N).max()
    assert distance < math.sqrt(math.log(2e6) / (2 * N)) + 0.5 / N


@pytest.mark.parametrize(("on", "off"), [(20.0, 60.0), (5.0, 2.0), (1.5, 1.2)])
def test_markov(on, off):
    trace = TRACES["markov"](N, 3, on=on, off=off)
    share, memory = on / (on + off), 1 - 1 / on - 1 / off
    seen = np.array([trace.round(t).online for t in range(1, ROUNDS + 1)])
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
