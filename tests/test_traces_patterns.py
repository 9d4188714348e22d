"""The availability patterns of the papers against their definitions."""

import json
from importlib.resources import files

import numpy as np
import pytest
from golden_cases import cases

from traces import Pools, Trace, finished_steps
from traces.patterns.completions import POOLS, Stragglers, measured_completions
from traces.patterns.markov import Markov
from traces.patterns.mimic import Levels, RoundRobin, TimeVarying
from traces.patterns.sleep import Sleep, quietest
from traces.patterns.turns import Diurnal, Periodic

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


def test_levels_never_leave_fewer_than_two():
    count = online(Levels(4, 3, lowest=0.0), range(1, 300)).sum(axis=1)
    assert count.min() == 2
    assert online(Levels(1, 3, lowest=0.0), range(1, 9)).all()


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


@pytest.mark.parametrize("share", [0.1, 0.29, 0.5, 1.0])
def test_time_varying_number_is_exact(share):
    assert (online(TimeVarying(100, 3, share=share), range(1, 200)).sum(axis=1) == round(share * 100)).all()
    assert (online(TimeVarying(5, 3, share=0.1), range(1, 50)).sum(axis=1) == 1).all()  # at least one


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
        ("client|seconds\n0|5\n", "line 1: the header is"),
    ],
)
def test_sleep_refuses_posts(tmp_path, text, message):
    file = tmp_path / "posts.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        Sleep(2, 0, file=str(file))


def test_markov_of_one_round_alternates():
    seen = online(Markov(1000, 3, on=1, off=1), range(1, 40))
    assert (seen[1:] != seen[:-1]).all()


def test_a_share_of_the_clients_does_a_uniform_number_of_epochs():
    trace = Stragglers(2000, 0, share=0.9, epochs=5)
    rounds = [trace.round(t) for t in range(1, 11)]
    assert all(now.member.all() and now.online.all() for now in rounds)
    steps = np.concatenate([finished_steps(now.completion, 5) for now in rounds])
    counts = np.bincount(steps, minlength=6)
    assert counts[0] == 0
    expected = np.array([0.18, 0.18, 0.18, 0.18, 0.18 + 0.1]) * 20_000  # of the epochs 1 to 5
    assert np.abs(counts[1:] - expected).max() < 5 * np.sqrt(expected.max())


def test_five_groups_take_turns():
    trace = Periodic(250, 3)  # 5 groups, 20 rounds
    assert np.bincount(trace.group).tolist() == [50] * 5
    seen = np.array([trace.round(t).online for t in range(1, 101)])
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


def test_offsets_are_uniform():
    offsets = [Periodic(5, seed, groups=2, period=8).offset for seed in range(2000)]
    count = np.bincount(offsets)
    assert len(count) == 4
    assert np.abs(count - 500).max() < 5 * np.sqrt(2000 * 3 / 16)


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
        values, counts = np.unique(own, return_counts=True)
        seen = (drawn[:, None] == values).sum(axis=0)
        assert seen.sum() == len(drawn)
        expected = counts / len(own) * len(drawn)
        assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()
