import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexfl.ground.allowed import options_of
from traces import TRACES, Trace, finished_steps

FROM_FILE = {"recorded", "flash", "table", "run"}  # need a file, see test_traces_clock.py and _readers
EVERY_TRACE = sorted(set(TRACES) - FROM_FILE)
BY_SHARE = {"diurnal", "periodic", "time-varying"}  # choose a fraction of the N clients, which depends on N


def make(name, num_clients, seed):
    """Make a trace with its default options, and label shares if it needs them."""
    data = {}
    if "label_shares" in inspect.signature(TRACES[name]).parameters:
        data["label_shares"] = np.random.default_rng(5).dirichlet(np.full(10, 0.1), num_clients)
    return TRACES[name](num_clients, seed, **data)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_shapes_types_and_ranges(name):
    trace = make(name, 50, 3)
    assert isinstance(trace, Trace)
    assert trace.num_clients == 50
    member, online, completion = trace.round(1)
    assert member.shape == online.shape == completion.shape == (50,)
    assert member.dtype == online.dtype == np.bool_
    assert completion.dtype == np.float32
    assert member.all()
    assert np.all((completion >= 0) & (completion <= 1))
    assert not completion[~online].any()
    lost = trace.lost(1)
    assert lost.shape == (50,)
    assert lost.dtype == np.bool_
    late = trace.late(1)
    assert late.shape == (50,)
    assert late.dtype == np.int32
    assert late.any() <= trace.has_late_replies


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_pure_function_of_the_round(name):
    forwards = make(name, 100, 7)
    first = {t: forwards.round(t) for t in range(1, 6)}
    backwards = make(name, 100, 7)
    np.random.default_rng(0).random(10)
    for t in range(5, 0, -1):
        assert same(backwards.round(t), first[t])
        assert same(forwards.round(t), first[t])


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_results_belong_to_the_caller(name):
    trace = make(name, 20, 7)
    before = trace.round(1)
    kept = [array.copy() for array in before]
    before.member[0] = not before.member[0]
    assert before.online[0] == kept[1][0]
    before.online[:] = False
    before.completion[:] = 0
    assert same(trace.round(1), kept)


@pytest.mark.parametrize("name", ["bernoulli", "pools"])
def test_rounds_and_seeds_differ(name):
    trace, other = make(name, 200, 7), make(name, 200, 8)
    assert not same(trace.round(1), trace.round(2))
    assert not same(trace.round(1), other.round(1))


@pytest.mark.parametrize("name", sorted(set(EVERY_TRACE) - BY_SHARE))
def test_more_clients_leave_the_first_ones_unchanged(name):
    few, many = make(name, 33, 7).round(4), make(name, 100, 7).round(4)
    assert same(few, [array[:33] for array in many])


@pytest.mark.parametrize("name", TRACES)
def test_registered_factories_follow_the_convention(name):
    num_clients, seed, *options = inspect.signature(TRACES[name]).parameters.values()
    assert (num_clients.name, seed.name) == ("num_clients", "seed")
    for option in options:
        assert option.kind is option.KEYWORD_ONLY
        if option.name == "label_shares":  # comes from the data, not from the user
            assert "label-shares" not in options_of(TRACES[name])
            continue
        (known,) = [o for o in options_of(TRACES[name]).values() if o.parameter == option.name]
        assert isinstance(known.default, known.kind)
    assert TRACES[name].__doc__.splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", sorted(FROM_FILE))
def test_a_file_is_required(name):
    with pytest.raises(ValueError, match=f"trace {name}: no file is given, set file="):
        TRACES[name](5, 1)


@pytest.mark.parametrize("name", EVERY_TRACE)
def test_invalid_arguments(name):
    with pytest.raises(ValueError, match="num_clients is 0"):
        make(name, 0, 1)
    with pytest.raises(ValueError, match="seed is -1"):
        make(name, 1, -1)
    trace = make(name, 5, 1)
    for t in (0, -3):
        for method in (trace.round, trace.lost, trace.late, trace.seconds):
            with pytest.raises(ValueError, match=f"round {t} does not exist"):
                method(t)


@pytest.mark.parametrize(
    ("completion", "planned", "steps"),
    [
        (0, 10, 0),
        (1, 10, 10),
        (0.3, 10, 3),
        (0.7, 10, 7),  # below 7 in float32
        (0.29, 100, 29),  # below 29 even in float64
        (0.39, 10, 3),
        (0.01, 10, 1),  # at least one step
        (1e-30, 10, 1),
        (0.99, 1, 1),
        (1, 0, 0),  # no steps planned
    ],
)
def test_finished_steps_by_hand(completion, planned, steps):
    assert finished_steps(np.float32(completion), planned) == steps


def test_finished_steps_vectorised():
    completion = np.array([0, 0.5, 0.5, 1], np.float32)
    steps = finished_steps(completion, np.array([4, 4, 7, 9]))
    assert steps.dtype == np.intp
    assert steps.tolist() == [0, 2, 3, 9]
    assert finished_steps(completion, 4).tolist() == [0, 2, 2, 4]


@given(planned=st.integers(1, 3000), data=st.data())
def test_finished_steps_invert_the_completion(planned, data):
    steps = data.draw(st.integers(0, planned))
    assert finished_steps(np.float32(steps / planned), planned) == steps


@given(st.floats(0, 1, width=32), st.integers(1, 10**6))
def test_finished_steps_bounds(completion, planned):
    steps = int(finished_steps(completion, planned))
    assert (steps == 0) == (completion == 0)
    assert steps <= planned
    assert steps <= max(1, completion * planned + 1e-4)
    assert steps > completion * planned - 1


@pytest.mark.parametrize("completion", [-0.1, 1.1, float("nan")])
def test_finished_steps_refuses_invalid_completions(completion):
    with pytest.raises(ValueError, match=rf"completion {completion:g} is outside 0\.\.1"):
        finished_steps(np.array([0.5, completion]), 10)


def test_finished_steps_refuses_negative_steps():
    with pytest.raises(ValueError, match="-1 planned steps are negative"):
        finished_steps(0.5, -1)
