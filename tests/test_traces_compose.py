"""Lost and late replies, combined traces, and invalid options of patterns."""

import numpy as np
import pytest

from traces import Combined, Membership
from traces.patterns.additions import Late, Lost, MinSeparation
from traces.patterns.completions import Pools
from traces.patterns.markov import Markov
from traces.patterns.turns import Diurnal
from traces.rates import Always, Bernoulli

N = 10_000


def test_late_by_definition():
    """A tenth is late, by 1, 2 or 3 rounds alike."""
    trace = Late(N, 3, p=0.1, rounds=3)
    late = np.array([trace.delay(t) for t in range(1, 101)])
    assert (late > 0).mean() == pytest.approx(0.1, abs=0.001)
    for rounds in (1, 2, 3):
        assert (late == rounds).mean() == pytest.approx(0.1 / 3, abs=0.001)
    assert np.array_equal(Late(N, 3, p=0.1, rounds=3).delay(77), late[76])
    assert np.array_equal(Late(50, 3, p=0.1, rounds=3).delay(77), late[76, :50])
    assert trace.round(1).completion.min() == 1


def test_the_largest_delay_counts():
    class Later(Late):
        """Another kind of late replies."""

    one, other = Late(50, 3, p=0.5, rounds=2), Later(50, 4, p=0.5, rounds=9)
    trace = Combined(Always(50, 0), one, other, Membership(50, {2: 5}, {}))
    assert trace.has_late_replies
    assert np.array_equal(trace.delay(6), np.maximum(one.delay(6), other.delay(6)))
    assert not Combined(Always(50, 0), Lost(50, 0), Membership(50, {}, {})).has_late_replies


def test_combination():
    diurnal, pools, lost = Diurnal(50, 3, groups=5, period=4), Pools(50, 3), Lost(50, 3, p=0.3)
    trace = Combined(diurnal, pools, lost)
    for t in (1, 4, 5, 9):
        availability = trace.round(t)
        assert np.array_equal(availability.online, diurnal.first_shift == ((t - 1) // 4 % 2 == 0))
        assert np.array_equal(availability.completion, pools.round(t).completion * availability.online)
        assert np.array_equal(trace.lost(t), lost.lost(t))
    assert trace.ends(3) is None


@pytest.mark.parametrize("R", [1, 2, 7])
def test_min_separation(R):
    """Whoever finished a step and was heard rests; others may try again at once. In any order of rounds."""
    late = Membership(20, {3: 9}, {4: 30})
    others = Combined(Bernoulli(20, 3, p=0.6), Dropping(20, 3), Lost(20, 3, p=0.3), late)
    trace = Combined(
        Bernoulli(20, 3, p=0.6), Dropping(20, 3), MinSeparation(20, 3, R=R), Lost(20, 3, p=0.3), late
    )
    last, expected = [-100] * 20, []
    for t in range(1, 61):
        now, lost = others.round(t), others.lost(t)
        rested = np.array([t - last[k] >= R for k in range(20)])
        expected.append(now.completion * rested)
        for k in np.flatnonzero(rested & (now.completion > 0) & ~lost):
            last[k] = t
        seen = trace.round(t)
        assert np.array_equal(seen.member, now.member)
        assert np.array_equal(seen.online, now.online & rested)
    for t in (60, 1, 33, 33, 60):
        assert np.array_equal(trace.round(t).completion, expected[t - 1])
    assert min(last) > 0


class Dropping(Bernoulli):
    """Everybody is online, half drop out."""

    def availability(self, t):
        half = self.rng("dropping", t).random(self.num_clients) < 0.5
        return Always(self.num_clients, 0).round(t)._replace(completion=half.astype(np.float32))


def test_min_separation_alone():
    """All take part together."""
    alone, combined = MinSeparation(4, 0, R=3), Combined(MinSeparation(4, 0, R=3))
    for t in range(1, 8):
        assert alone.round(t).online.tolist() == [t % 3 == 1] * 4 == combined.round(t).online.tolist()
    assert alone.participation(1) is None


def test_invalid_combinations():
    with pytest.raises(ValueError, match="bernoulli and bernoulli would draw the same"):
        Combined(Bernoulli(5, 1), Always(5, 1), Bernoulli(5, 1, p=0.3))
    with pytest.raises(ValueError, match="same number of clients"):
        Combined(Always(5, 1), Bernoulli(6, 1))
    with pytest.raises(ValueError, match="one or more"):
        Combined()


def test_specs_combine():
    from fedtide.config import Settings
    from fedtide.federation import Federation

    def make(spec, **changes):
        return Federation.of(Settings(trace=spec, num_clients=20, seed=4, **changes)).trace

    trace = make("diurnal:period=3,groups=1+lost:p=1+pools", arrivals="1=2")
    assert np.flatnonzero(trace.round(1).online).tolist() == [0]
    assert trace.lost(1).all()
    assert isinstance(make("markov:on=1e+1,off=5"), Markov)
    with pytest.raises(ValueError, match="unknown trace 'nobody'"):
        make("always+nobody")
    with pytest.raises(ValueError, match="rates and labels would draw the same"):  # as the user calls them
        make("rates+labels")
    with pytest.raises(ValueError, match="a name is missing"):
        make("always+")
