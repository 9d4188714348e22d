import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import TRACES, Trace, finished_steps

FROM_FILE = {"recorded", "flash", "table", "run"}  # need a file, see test_traces_clock.py and _readers
EVERY_TRACE = sorted(set(TRACES) - FROM_FILE - {"speeds"})  # which need another, see test_traces_speeds.py
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
    ],
)
def test_options_that_do_not_go_together(name, options, says):
    with pytest.raises(ValueError, match=says):
        make(name, 5, 1, **options)


@pytest.mark.parametrize("name", ["bernoulli", "pools"])
def test_rounds_and_seeds_differ(name):
    trace, other = make(name, 200, 7), make(name, 200, 8)
    assert not same(trace.round(1), trace.round(2))
    assert not same(trace.round(1), other.round(1))


@pytest.mark.parametrize("name", sorted(FROM_FILE))
def test_a_file_is_required(name):
    with pytest.raises(ValueError, match=f"trace {name}: no file is given, set file="):
        TRACES[name](5, 1)


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
