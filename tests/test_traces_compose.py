"""Lost and late replies, combined traces, and invalid options of patterns."""

import numpy as np
import pytest

from traces import TRACES, Combined, Membership
from traces.patterns.bernoulli import Always, Bernoulli
from traces.patterns.daily import Diurnal, Sine
from traces.patterns.late import Late
from traces.patterns.lost import Lost
from traces.patterns.markov import Markov
from traces.patterns.mimic import Levels, RoundRobin, TimeVarying
from traces.patterns.pools import Pools
from traces.patterns.sleep import Sleep

N = 10_000


def test_nothing_is_lost_or_late_by_default():
    for name in ("always", "pools", "diurnal"):
        assert not TRACES[name](30, 3).lost(5).any()
        assert not TRACES[name](30, 3).late(5).any()
        assert not TRACES[name](30, 3).has_late_replies


def test_lost_by_definition():
    trace = Lost(N, 3, p=0.05)
    lost = np.array([trace.lost(t) for t in range(1, 201)])
    assert lost.dtype == np.bool_
    assert lost.mean() == pytest.approx(0.05, abs=0.001)
    assert lost.mean(axis=0).std() == pytest.approx(np.sqrt(0.05 * 0.95 / 200), rel=0.1)
    assert np.array_equal(Lost(N, 3, p=0.05).lost(77), lost[76])
    assert trace.round(1).completion.min() == 1


def test_late_by_definition():
    """A tenth is late, by 1, 2 or 3 rounds alike."""
    trace = Late(N, 3, p=0.1, rounds=3)
    late = np.array([trace.late(t) for t in range(1, 101)])
    assert (late > 0).mean() == pytest.approx(0.1, abs=0.001)
    for rounds in (1, 2, 3):
        assert (late == rounds).mean() == pytest.approx(0.1 / 3, abs=0.001)
    assert np.array_equal(Late(N, 3, p=0.1, rounds=3).late(77), late[76])
    assert np.array_equal(Late(50, 3, p=0.1, rounds=3).late(77), late[76, :50])
    assert trace.round(1).completion.min() == 1


def test_the_largest_delay_counts():
    class Later(Late):
        """Another kind of late replies."""

    one, other = Late(50, 3, p=0.5, rounds=2), Later(50, 4, p=0.5, rounds=9)
    trace = Membership(Combined(Always(50, 0), one, other), {2: 5}, {})
    assert trace.has_late_replies
    assert np.array_equal(trace.late(6), np.maximum(one.late(6), other.late(6)))
    assert not Membership(Combined(Always(50, 0), Lost(50, 0)), {}, {}).has_late_replies


def test_combination():
    diurnal, pools, lost = Diurnal(50, 3, groups=5, period=4), Pools(50, 3), Lost(50, 3, p=0.3)
    trace = Combined(diurnal, pools, lost)
    for t in (1, 4, 5, 9):
        availability = trace.round(t)
        assert np.array_equal(availability.online, diurnal.first_shift == ((t - 1) // 4 % 2 == 0))
        assert np.array_equal(availability.completion, pools.round(t).completion * availability.online)
        assert np.array_equal(trace.lost(t), lost.lost(t))
    assert trace.seconds(3) is None


def test_membership_on_a_combination():
    trace = Membership(Combined(Always(4, 0), Lost(4, 0, p=1.0)), {2: 5}, {})
    assert trace.round(4).online.tolist() == [True, True, False, True]
    assert trace.lost(4).all()
    assert trace.seconds(4) is None


def test_invalid_combinations():
    with pytest.raises(ValueError, match="Bernoulli occurs twice"):
        Combined(Bernoulli(5, 1), Always(5, 1), Bernoulli(5, 1, p=0.3))
    with pytest.raises(ValueError, match="same number of clients"):
        Combined(Always(5, 1), Bernoulli(6, 1))
    with pytest.raises(ValueError, match="one or more"):
        Combined()


def test_specs_combine():
    from clients.environment import make_trace
    from flexfl.config import Settings

    def make(spec, **changes):
        return make_trace(Settings(trace=spec, num_clients=20, seed=4, **changes))

    trace = make("diurnal:period=3,groups=1+lost:p=1+pools", arrivals="1=2")
    assert np.flatnonzero(trace.round(1).online).tolist() == [0]
    assert trace.lost(1).all()
    assert isinstance(make("markov:on=1e+1,off=5"), Markov)
    with pytest.raises(ValueError, match="unknown trace 'nobody'"):
        make("always+nobody")
    with pytest.raises(ValueError, match="a name is missing"):
        make("always+")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Levels(5, 1, lowest=1.5), "levels: lowest is 1.5"),
        (lambda: RoundRobin(5, 1, tau_max=0), "round-robin: tau-max is 0, give 1 or more"),
        (lambda: RoundRobin(5, 1, variant="x"), "variant is 'x', give paper or half-normal"),
        (lambda: TimeVarying(5, 1, share=-0.1), "time-varying: share is -0.1"),
        (lambda: Diurnal(5, 1, period=0), "diurnal: period is 0"),
        (lambda: Diurnal(5, 1, of=0), "diurnal: of is 0"),
        (lambda: Diurnal(5, 1, groups=11), r"groups is 11, give a number from 1 to 10 \(of\)"),
        (lambda: Diurnal(5, 1, rest_period=-1), "rest-period is -1"),
        (lambda: Sleep(5, 1, period=0), "sleep: period is 0"),
        (lambda: Sleep(5, 1, hours=25), "sleep: hours is 25"),
        (lambda: Sleep(5, 1, file="nowhere.csv"), "nowhere.csv cannot be read"),
        (lambda: Markov(5, 1, on=0.5), "markov: on is 0.5, give 1 or more"),
        (lambda: Markov(5, 1, off=float("nan")), "markov: off is nan"),
        (lambda: Sine(5, 1, period=0), "sine: period is 0"),
        (lambda: Sine(5, 1, amplitude=0.6), "sine: mean - amplitude is"),
        (lambda: Sine(5, 1, mean=0.8), "sine: mean . amplitude is"),
        (lambda: Lost(5, 1, p=2), "lost: p is 2"),
        (lambda: Late(5, 1, p=-0.1), "late: p is -0.1"),
        (lambda: Late(5, 1, rounds=0), "late: rounds is 0, give 1 or more"),
    ],
)
def test_invalid_options(make, message):
    with pytest.raises(ValueError, match=message) as refusal:
        make()
    assert "\n" not in str(refusal.value)
