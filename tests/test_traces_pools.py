import json
from importlib.resources import files

import numpy as np
import pytest

from traces import Pools
from traces.patterns.pools import POOLS, measured_completions

N, ROUNDS = 4000, 40


@pytest.fixture(scope="module")
def by_pool():
    """Completions of all clients in all rounds, grouped by pool."""
    trace = Pools(N, 11)
    completion = np.array([trace.round(t).completion for t in range(1, ROUNDS + 1)])
    return [completion[:, trace.pool == j].ravel() for j in range(len(POOLS))]


def test_the_table_of_the_paper():
    assert [pool.sd for pool in POOLS] == [0, 14.8, 11.3, 11.7, 14.8, 23.3, 22.3, 18.3]
    assert [pool.floor > 0 for pool in POOLS] == [True] * 5 + [False] * 3
    assert [pool.name.split("-")[0] for pool in POOLS] == ["cpu"] * 5 + ["bandwidth"] * 3
    assert all(0 < pool.mean <= 100 for pool in POOLS)


@pytest.mark.parametrize("j", range(8))
def test_mean_and_sd_before_clipping(by_pool, j):
    # Clipping keeps quantiles within the bounds: the median is the mean; Phi(1) = 84.13 % is one sd above.
    median, one_sd_up = np.quantile(by_pool[j], [0.5, 0.841345]) * 100
    assert median == pytest.approx(POOLS[j].mean, abs=0.8)
    assert one_sd_up - median == pytest.approx(POOLS[j].sd, abs=1)


def test_a_pool_that_is_rarely_clipped_has_its_mean_and_sd(by_pool):
    assert by_pool[2].mean() * 100 == pytest.approx(50, abs=0.5)
    assert by_pool[2].std() * 100 == pytest.approx(11.3, abs=0.3)


def test_first_pool_is_always_complete(by_pool):
    assert (by_pool[0] == 1).all()


def test_cpu_pools_are_never_inactive(by_pool):
    assert min(completion.min() for completion in by_pool[:5]) >= np.float32(0.05)


def test_bandwidth_pools_are_sometimes_inactive_and_rarely_complete(by_pool):
    low, medium, high = by_pool[5:]
    assert np.mean(low == 0) > np.mean(medium == 0) > np.mean(high == 0)
    assert np.mean(low == 0) == pytest.approx(0.0989, abs=0.01)  # Phi(-30 / 23.3)
    assert all(np.mean(completion == 1) < 0.06 for completion in (low, medium, high))


def test_inactive_clients_drop_out_mid_round():
    availability = Pools(N, 11).round(1)
    assert availability.online.all()
    assert (availability.completion == 0).any()


@pytest.mark.parametrize("first", range(1, 9))
def test_pools_have_equal_frequencies(first):
    shares = np.bincount(Pools(20_000, 2, first=first).pool, minlength=8) / 20_000
    assert shares[:first] == pytest.approx(1 / first, abs=0.015)
    assert not shares[first:].any()


def test_the_pool_is_fixed_and_depends_on_the_seed():
    trace = Pools(N, 11)
    before = trace.pool.copy()
    trace.round(3)
    assert np.array_equal(trace.pool, before)
    assert np.array_equal(Pools(N, 11).pool, before)
    assert not np.array_equal(Pools(N, 12).pool, before)


# Measured pools


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
    trace = Pools(N, 11, source="measured")
    assert np.array_equal(trace.pool, Pools(N, 11, first=5).pool)
    assert np.array_equal(trace.pool, Pools(N, 11, first=5, source="measured").pool)
    assert Pools(N, 11, first=2, source="measured").pool.max() == 1
    completion = np.array([trace.round(t).completion for t in range(1, ROUNDS + 1)])
    for j, own in enumerate(shares):
        drawn = completion[:, trace.pool == j].ravel()
        values, counts = np.unique(own, return_counts=True)
        seen = (drawn[:, None] == values).sum(axis=0)
        assert seen.sum() == len(drawn)
        expected = counts / len(own) * len(drawn)
        assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()
