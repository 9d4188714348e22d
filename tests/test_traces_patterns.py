"""The availability patterns of the papers against their definitions."""

import numpy as np
import pytest
from golden_cases import cases

from traces import Trace
from traces.patterns.daily import Diurnal, Sine
from traces.patterns.markov import Markov
from traces.patterns.mimic import Levels, RoundRobin, TimeVarying
from traces.patterns.sleep import Sleep, quietest

N, ROUNDS = 10_000, 1000


def online(trace: Trace, rounds: range) -> np.ndarray:
    """Who is online, shape (rounds, N)."""
    return np.array([trace.round(t).online for t in rounds])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "schedule" in metafunc.fixturenames:
        known = {"diurnal", "alternate"}
        found = (case for _, case in cases(metafunc.config) if case.get("kind") in known)
        metafunc.parametrize("schedule", [pytest.param(case, id=case["id"]) for case in found])


def test_golden_schedule(schedule):
    args = schedule["args"]
    if schedule["kind"] == "diurnal":
        group = args["group"]
        assert group == sorted(group)  # the first groups come first, as in the trace
        trace = Diurnal(len(group), 0, period=args["E"], groups=group.count(0), of=len(group))
    else:
        trace = Diurnal(2, 0, period=args["t1"], rest_period=args["t2"], groups=1, of=2)
    assert online(trace, range(1, args["rounds"] + 1)).astype(int).tolist() == schedule["expect"]


# Levels


def test_levels_never_leave_fewer_than_two():
    count = online(Levels(4, 3, lowest=0.0), range(1, 300)).sum(axis=1)
    assert count.min() == 2
    assert online(Levels(1, 3, lowest=0.0), range(1, 9)).all()


# Round robin


def test_round_robin_by_definition():
    trace = RoundRobin(N, 3, tau_max=20)
    seen = online(trace, range(1, ROUNDS + 1))
    for tau in (1, 2, 7, 20):
        of_tau = seen[: ROUNDS // tau * tau, trace.tau == tau].reshape(ROUNDS // tau, tau, -1)
        assert (of_tau.sum(axis=1) == 1).all()  # once in each cycle
        assert (of_tau == of_tau[0]).all()  # always in the same phase
        assert of_tau[0].mean(axis=1) == pytest.approx(1 / tau, abs=0.08)  # they take turns
    assert seen.mean(axis=1).std() < 0.01


def test_round_robin_half_normal_never_leaves_fewer_than_two():
    seeds = [s for s in range(60) if (RoundRobin(3, s, variant="half-normal").tau > 1).all()]
    assert seeds
    for seed in seeds[:5]:
        trace = RoundRobin(3, seed, variant="half-normal")
        assert online(trace, range(1, 40)).sum(axis=1).min() == 2


# Time-varying


@pytest.mark.parametrize("share", [0.1, 0.29, 0.5, 1.0])
def test_time_varying_number_is_exact(share):
    assert (online(TimeVarying(100, 3, share=share), range(1, 200)).sum(axis=1) == round(share * 100)).all()


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


def test_time_varying_has_at_least_one():
    assert online(TimeVarying(5, 3, share=0.1), range(1, 50)).sum(axis=1).tolist() == [1] * 49


# Diurnal


def test_diurnal_of_the_paper():
    trace = Diurnal(1000, 0, period=100, groups=1)
    first = np.arange(1000) < 100  # N / 10 clients hold digit 0
    for t in (1, 100, 201, 300):
        assert np.array_equal(trace.round(t).online, first)
    for t in (101, 200, 301):
        assert np.array_equal(trace.round(t).online, ~first)


def test_diurnal_groups_are_equal():
    assert Diurnal(1003, 0, groups=3).first_shift.sum() == pytest.approx(300.9, abs=1)
    assert Diurnal(10, 0, groups=10).round(1).online.all()
    assert not Diurnal(10, 0, groups=10, period=2).round(3).online.any()


# Sleep


def test_sleep_is_eight_hours_a_day_in_one_piece():
    trace = Sleep(N, 3, period=240)
    day = online(trace, range(1, 241))
    assert (day.sum(axis=0) == 80).all()
    assert (day & ~np.roll(day, 1, axis=0)).sum(axis=0).tolist() == [1] * N
    assert day.mean(axis=1) == pytest.approx(1 / 3, abs=0.03)
    assert np.array_equal(online(trace, range(241, 250)), day[:9])


def test_sleep_from_posts(tmp_path):
    hour = 3600
    posts = [(0, 23 * hour), (0, 86400 + 12 * hour), (0, 18 * hour), (1, 6 * hour), (1, 7 * hour)]
    file = tmp_path / "posts.csv"
    file.write_text("client,seconds\n" + "".join(f"{k},{s}\n" for k, s in posts))
    trace = Sleep(2, 0, period=24, file=str(file))
    # Client 0: the eight hours after 23 h hold no post; client 1: those after 7 h hold none, after 6 h one.
    assert trace.begin.tolist() == [23 * hour, 7 * hour]
    seen = online(trace, range(1, 25))
    assert np.flatnonzero(seen[:, 0]).tolist() == [0, 1, 2, 3, 4, 5, 6, 23]
    assert np.flatnonzero(seen[:, 1]).tolist() == list(range(7, 15))


def test_quietest_by_brute_force():
    rng = np.random.default_rng(5)
    for _ in range(50):
        posts = rng.integers(0, 86400, rng.integers(1, 30)).astype(float)
        inside = [sum(0 < d < 28800 for d in (posts - s) % 86400) for s in np.sort(posts)]
        assert quietest(posts, 28800.0) == np.sort(posts)[int(np.argmin(inside))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,seconds\n0,5\n", "client 1 has no posts"),
        ("client,seconds\n0,5\n2,5\n", "line 3: client 2 does not exist, the clients are 0 to 1"),
        ("client,seconds\n0.5,5\n", "line 2: client is 0.5, give a whole number, 0 or more"),
        ("client;seconds\n0;5\n", "line 1: the header is 'client;seconds', expected"),
    ],
)
def test_sleep_refuses_posts(tmp_path, text, message):
    file = tmp_path / "posts.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        Sleep(2, 0, file=str(file))


# Markov


@pytest.mark.parametrize(("on", "off"), [(4.0, 12.0), (10.0, 10.0), (1.0, 3.0), (1.5, 1.2)])
def test_markov_by_definition(on, off):
    seen = online(Markov(2000, 3, on=on, off=off), range(1, ROUNDS + 1))
    before, now = seen[:-1], seen[1:]
    assert seen.mean() == pytest.approx(on / (on + off), abs=0.01)
    assert seen[0].mean() == pytest.approx(on / (on + off), abs=0.05)
    assert now[before].mean() == pytest.approx(1 - 1 / on, abs=0.005)
    assert now[~before].mean() == pytest.approx(1 / off, abs=0.005)
    # The chain has no memory beyond one round, at rounds of any kind (powers of two, odd, ...).
    for t in (3, 4, 5, 6, 8, 513):
        for last in (False, True):
            for older in (False, True):
                chosen = (seen[t - 2] == last) & (seen[t - 3] == older)
                if chosen.sum() > 100:
                    stays = 1 - 1 / on if last else 1 / off
                    assert abs(seen[t - 1][chosen].mean() - stays) < 4.5 * 0.5 / np.sqrt(chosen.sum())


def test_markov_of_one_round_alternates():
    seen = online(Markov(1000, 3, on=1, off=1), range(1, 40))
    assert (seen[1:] != seen[:-1]).all()


def test_markov_in_any_order():
    forwards = online(Markov(300, 5), range(1, 200))
    trace = Markov(300, 5)
    for t in np.random.default_rng(1).permutation(199)[:60] + 1:
        assert np.array_equal(trace.round(int(t)).online, forwards[t - 1])


# Sine


def test_sine_by_definition():
    period = 20
    seen = online(Sine(N, 3, period=period), range(1, ROUNDS + 1)).mean(axis=1)
    by_phase = seen.reshape(-1, period).mean(axis=0)
    expected = 0.5 + 0.4 * np.sin(2 * np.pi * np.arange(period) / period)
    assert by_phase == pytest.approx(expected, abs=0.004)
