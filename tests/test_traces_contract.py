"""What holds for every trace, alone and combined with others, and what of its options is refused."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES, Bernoulli, Combined, Membership, Trace, finished_steps
from traces.patterns.additions import Late, Lost, MinSeparation
from traces.patterns.completions import Pools
from traces.patterns.markov import Markov
from traces.patterns.turns import Diurnal
from traces.rates import Always

FROM_FILE = {"recorded", "flash", "flhetbench", "fta", "table", "run"}  # see test_traces_recordings.py
EVERY_TRACE = sorted(set(TRACES) - FROM_FILE - {"speeds"})  # which need another, see test_traces_drawn.py
BY_SHARE = {"diurnal", "periodic", "time-varying"}  # choose a fraction of the N clients, which depends on N


def make(name, num_clients, seed, **options):
    """Make a trace, with label shares if it needs them."""
    if "label_shares" in inspect.signature(TRACES[name]).parameters:
        options["label_shares"] = np.random.default_rng(5).dirichlet(np.full(10, 0.1), num_clients)
    return TRACES[name](num_clients, seed, **options)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_contract(name):
    """A pure function of the round, whose arrays belong to the caller."""
    trace = make(name, 50, 7)
    assert isinstance(trace, Trace)
    assert trace.num_clients == 50
    member, online, completion = trace.round(1)
    lost, late = trace.lost(1), trace.delay(1)
    arrays = (member, online, completion, lost, late)
    assert [array.shape for array in arrays] == [(50,)] * 5
    assert [array.dtype for array in arrays] == [np.bool_, np.bool_, np.float32, np.bool_, np.int32]
    assert member.all()
    assert ((completion >= 0) & (completion <= 1)).all()
    assert not completion[~online].any()
    assert late.any() <= trace.has_late_replies
    rounds = {t: trace.round(t) for t in range(1, 40)}
    other = make(name, 50, 7)
    for t in (39, 2, 17, 32, 1, 5):
        assert same(other.round(t), rounds[t])
        assert same(trace.round(t), rounds[t])
    for array in trace.round(1):
        array[:] = 0
    assert same(trace.round(1), rounds[1])
    if name not in BY_SHARE:
        assert same(rounds[4], [array[:50] for array in make(name, 100, 7).round(4)])


@pytest.mark.parametrize(("old", "new"), [("late", "delay"), ("seconds", "ends")])
def test_a_method_of_an_older_version_is_refused(old, new):
    with pytest.raises(TypeError, match=f"Office.{old} is called {new}"):
        type("Office", (Trace,), {old: lambda self, t: 0})


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_what_is_not_allowed_is_refused(name):
    for changes in ({"num_clients": 0}, {"seed": -1}):
        (option,) = changes
        with pytest.raises(ValueError, match=f"{option.replace('_', '-')} is "):
            make(name, **{"num_clients": 5, "seed": 1, **changes})
    with pytest.raises(ValueError, match="round 0 does not exist"):
        make(name, 5, 1).round(0)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("diurnal", {"groups": 11}, "groups is 11; it must be at most of, 10"),
        ("sine", {"amplitude": 0.6}, "amplitude 0.6; the probability must"),
        ("sine", {"mean": 0.8}, "mean is 0.8"),
        ("periodic", {"groups": 3}, "period is 20; it must be a multiple of groups, 3"),
        ("rates", {"p": 0.5, "highest": 0.4}, "highest is 0.4; it must be at least p, 0.5"),
        ("rates", {"cycle": 50}, "cycle is 50, but bernoulli has no cycle"),
        ("labels", {"cycle": 7}, "cycle is 7, but bernoulli has no cycle"),
        ("labels", {"phi": "uniform", "floor": 0.1}, "phi=uniform has neither floor nor mean"),
        ("labels", {"phi": "uniform", "mean": 0.2}, "phi=uniform has neither floor nor mean"),
        ("sessions", {"kind": "slots", "on": 60.0}, "on is 60.0, but slots has no on"),
        ("sessions", {"p": 0.3}, "p is 0.3, but exponential has no p"),
        ("sessions", {"kind": "slots", "p": 1.5}, "p is 1.5; it must be from 0 to 1"),
        ("sessions", {"kind": "slot"}, r"kind is 'slot'; choose one of always, .*; did you mean slots\?"),
        ("speeds", {"kind": "uniform", "median": 2.0}, "median is 2.0, but uniform has no median"),
        ("speeds", {"low": 1.5}, "low is 1.5, but lognormal has no low"),
        ("speeds", {"kind": "uniform", "low": 3.0}, "low is 3; it must be at most high, 2"),
        ("speeds", {"groups": ".8/.2"}, "there are 2 groups and 1 factors, give a factor for each group"),
        ("speeds", {"groups": ".8/.1", "factors": "1/2"}, "groups is '.8/.1'; the shares must add up to 1"),
        ("speeds", {"groups": ".8/x", "factors": "1/2"}, "groups is '.8/x'; give positive numbers such as"),
        ("speeds", {"groups": ".8/.2", "factors": "1/-2"}, "factors is '1/-2'; give positive numbers"),
        ("speeds", {"groups": "nan", "factors": "1"}, "groups is 'nan'; give positive numbers"),
        *((name, {}, f"trace {name}: no file is given, set file=") for name in sorted(FROM_FILE)),
    ],
)
def test_options_that_are_refused(name, options, says):
    with pytest.raises(ValueError, match=says):
        make(name, 5, 1, **options)


@pytest.mark.parametrize("name", ["bernoulli", "pools"])
def test_rounds_and_seeds_differ(name):
    trace, other = make(name, 200, 7), make(name, 200, 8)
    assert not same(trace.round(1), trace.round(2))
    assert not same(trace.round(1), other.round(1))


def test_finished_steps_by_hand():
    """0.7 is below 7 of 10 in float32, 0.29 below 29 of 100 even in float64; what is above 0 is a step."""
    completion = np.array([0, 1, 0.3, 0.7, 0.29, 0.39, 0.01, 1e-30, 0.99, 1], np.float32)
    steps = finished_steps(completion, np.array([10, 10, 10, 10, 100, 10, 10, 10, 1, 0]))
    assert steps.dtype == np.intp
    assert steps.tolist() == [0, 10, 3, 7, 29, 3, 1, 1, 1, 0]
    assert finished_steps(completion[:3], 4).tolist() == [0, 4, 1]


@given(planned=st.integers(1, 3000), data=st.data())
def test_finished_steps_invert_the_completion(planned, data):
    steps = data.draw(st.integers(0, planned))
    assert finished_steps(np.float32(steps / planned), planned) == steps


@pytest.mark.parametrize(
    ("completion", "planned", "says"),
    [
        (-0.1, 10, r"completion -0.1 is outside 0\.\.1"),
        (1.1, 10, r"completion 1.1 is outside"),
        (float("nan"), 10, r"completion nan is outside"),
        (0.5, -1, "-1 planned steps are negative"),
    ],
)
def test_finished_steps_refuses(completion, planned, says):
    with pytest.raises(ValueError, match=says):
        finished_steps(np.array([0.5, completion]), planned)


# Lost and late replies, and combinations


def test_late_by_definition():
    """A tenth is late, by 1, 2 or 3 rounds alike."""
    trace = Late(10_000, 3, p=0.1, rounds=3)
    late = np.array([trace.delay(t) for t in range(1, 101)])
    assert (late > 0).mean() == pytest.approx(0.1, abs=0.001)
    for rounds in (1, 2, 3):
        assert (late == rounds).mean() == pytest.approx(0.1 / 3, abs=0.001)
    assert np.array_equal(Late(50, 3, p=0.1, rounds=3).delay(77), late[76, :50])
    assert trace.round(1).completion.min() == 1


def test_a_lost_reply_is_a_named_failure(simulate):
    """Clients that drop out have none to lose."""
    played = simulate(trace="pools+lost:p=0.4", num_clients=20, num_rounds=6)
    trace = Federation.of(played.experiment.settings).trace
    for t, record in enumerate(played.rounds, start=1):
        dropped, lost = trace.round(t).completion == 0, trace.lost(t)
        why = np.where(dropped, "dropped in mid-round", np.where(lost, "reply lost", "")).tolist()
        assert record["failed"] == {str(client): reason for client, reason in enumerate(why) if reason}
        assert record["active"] == np.flatnonzero(~dropped & ~lost).tolist()
    reasons = {reason for record in played.rounds for reason in record["failed"].values()}
    assert reasons == {"dropped in mid-round", "reply lost"}
    all_lost = simulate(trace="always+lost:p=1")
    np.testing.assert_array_equal(all_lost.weights, all_lost.experiment.initial.vector)


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
