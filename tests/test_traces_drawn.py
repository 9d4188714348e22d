"""Sessions and speeds that are drawn: by their definition, and what they are combined with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_traces_clock_unrolled import replay

from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES, Combined, Membership
from traces.base import NEVER, Draws
from traces.compose import timeline

N, DAY, SECOND = 5, 86400.0, 1_000_000
MANY = 4000
KINDS = [
    {"kind": "exponential", "on": 900.0, "off": 500.0},
    {"kind": "slots", "seconds": 300.0, "p": 0.6},
]


def sessions(num_clients=N, seed=3, **options):
    return TRACES["sessions"](num_clients, seed, **options)


def by_definition(kind, **options):
    """The sessions of the first day, drawn spell by spell."""
    draws, found = Draws(3, "sessions"), []

    def draw(k, number):
        return float(draws.uniform(np.array([k]), np.array([number]))[0])

    for k in range(N):
        if kind == "exponential":
            online = draw(k, 0) < options["on"] / (options["on"] + options["off"])
        else:
            online = draw(k, 0) < options["p"]
        start, number = 0.0, 1
        while start < DAY:
            if kind == "exponential":
                length = -np.log(draw(k, number)) * options["on" if online else "off"]
            else:
                stays = options["p"] if online else 1 - options["p"]
                length = options["seconds"] * np.ceil(np.log(draw(k, number)) / np.log(stays))
            if online:
                found.append((k, start, start + length))
            start, online, number = start + length, not online, number + 1
    return found


LOGS = [by_definition(**kind) for kind in KINDS]


@settings(max_examples=150)
@given(
    kind=st.sampled_from([0, 1]),
    moments=st.lists(st.integers(0, 40_000), min_size=1, max_size=5),
    deadline=st.sampled_from([0.0, 250.0, 2000.0]),
    on_interrupt=st.sampled_from(["pause", "stop"]),
    partial=st.booleans(),
)
def test_against_a_recording_of_them(kind, moments, **options):
    """The moments, in halves of seconds, come in any order."""
    options |= {"speed": 0.02, "spread": 1.0}
    drawn = sessions(**KINDS[kind], **options)
    replayed = replay(LOGS[kind], np.zeros(N), np.full(N, 2 * DAY), seed=3, repeat=False, **options)
    for now in (moment * SECOND // 2 for moment in moments):
        online = drawn.is_online(now)
        assert online.tolist() == replayed.is_online(now).tolist()
        later = np.append(np.full(N - 2, now), [now + 500 * SECOND, NEVER])
        assert drawn.next_online(later).tolist() == replayed.next_online(later).tolist()
        clients = np.flatnonzero(online)[::-1]
        assert drawn.leave(now, clients).tolist() == replayed.leave(now, clients).tolist()
        found, expected = drawn.tasks(now, 1, clients), replayed.tasks(now, 1, clients)
        assert found.moment.tolist() == expected.moment.tolist()
        assert found.completion.tolist() == expected.completion.tolist()


@pytest.mark.parametrize(
    ("options", "share", "mean_on", "mean_off"),
    [
        ({"on": 900.0, "off": 300.0}, 0.75, 900, 300),
        # Runs of slots are geometric: 1 / 0.8 slots offline, 1 / 0.2 online.
        ({"kind": "slots", "seconds": 60.0, "p": 0.8}, 0.8, 300, 75),
    ],
)
def test_sessions_by_definition(options, share, mean_on, mean_off):
    """At any time a share is online, and lengths of spells have their means."""
    seen = sessions(MANY, **options)
    for now in (0, 30, 777, 20_000):
        assert seen.is_online(now * SECOND).mean() == pytest.approx(share, abs=0.03)
    clients = np.flatnonzero(seen.is_online(0))
    leave, begin = seen.leave(0, clients), np.zeros(MANY, np.int64)
    begin[clients] = leave
    away = (seen.next_online(begin) - begin)[clients]
    assert leave.mean() == pytest.approx(mean_on * SECOND, rel=0.06)
    assert away.mean() == pytest.approx(mean_off * SECOND, rel=0.06)
    if "kind" not in options:
        assert leave.std() == pytest.approx(mean_on * SECOND, rel=0.08)


def test_slots_are_independent():
    seen = sessions(MANY, kind="slots", seconds=100.0, p=0.3)
    online = np.array([seen.is_online(now * SECOND) for now in (50, 150, 199, 250)])
    assert (online[1] == online[2]).all()
    for one, other in ((0, 1), (1, 3), (0, 3)):
        assert np.corrcoef(online[one], online[other])[0, 1] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("options", [{"kind": "always"}, {"kind": "slots", "p": 1.0}])
def test_always(options):
    """A task takes the time of a round unless there is a speed."""
    for more, seconds in (
        ({}, 600.0),
        ({"speed": 2.0}, 5.0),
        ({"speed": 0.01, "on_interrupt": "pause"}, 1000.0),
    ):
        seen, now = sessions(**options, **more), 10**12
        found = seen.tasks(now, 1, np.arange(N))
        assert found.moment.tolist() == [now + seconds * SECOND] * N
        assert found.completion.tolist() == [1.0] * N
        assert (seen.leave(now, np.arange(N)) == NEVER).all()
    assert (sessions(**options).round(10**6).completion == 1).all()


def test_never():
    seen = sessions(kind="slots", p=0.0)
    assert not seen.is_online(10**12).any()
    assert (seen.next_online(np.zeros(N, np.int64)) == NEVER).all()


def test_what_was_asked_before_makes_no_difference():
    """To one client or to all."""
    begin = np.arange(N) * 100 * SECOND
    for options in (*KINDS, {"kind": "always"}):
        fresh, used = sessions(**options), sessions(**options)
        used.tasks(10**12, 1, np.flatnonzero(used.is_online(10**12))[:1])
        assert used.next_online(begin).tolist() == fresh.next_online(begin).tolist()
        assert used.is_online(400 * SECOND).tolist() == fresh.is_online(400 * SECOND).tolist()


def test_rounds_see_the_same_sessions():
    trace, seen = sessions(**KINDS[0], round_seconds=300.0), sessions(**KINDS[0])
    for t in (1, 2, 50, 7):
        assert np.array_equal(trace.round(t).online, seen.is_online((t - 1) * 300 * SECOND))
    assert trace.ends(7) == 2_100_000_000


def test_draws_are_uniform_and_differ():
    """By client, number, seed and purpose."""
    clients, numbers = (a.ravel() for a in np.meshgrid(np.arange(300), np.arange(300)))
    drawn = Draws(1, "one").uniform(clients, numbers)
    assert ((drawn > 0) & (drawn < 1)).all()
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((counts - 900) ** 2 / 900).sum() < 160  # chi-squared, 99 degrees of freedom
    table = drawn.reshape(300, 300)
    others = (Draws(*key).uniform(clients, numbers) for key in ((2, "one"), (1, "other")))
    for one, other in (
        *((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])),
        *((drawn, other) for other in others),
    ):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.015)


# Speeds


def seconds(t=1, num_clients=MANY, seed=3, **options):
    """How long tasks of round t take where everybody is always online."""
    clock, now = timeline(TRACES["speeds"](num_clients, seed, **options)).clock, 700_000_000_000
    assert clock.is_online(now).all()
    found = clock.tasks(now, t, np.arange(num_clients))
    assert (found.completion == 1).all()
    return (found.moment - now) / 1e6


def test_lognormal_speeds(write):
    taken = seconds(median=2.0, spread=0.5)
    assert np.median(taken) == pytest.approx(5, rel=0.05)
    assert np.log(taken).std() == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(taken, seconds(t=9, median=2.0, spread=0.5))
    assert np.array_equal(taken[:50], seconds(num_clients=50, median=2.0, spread=0.5))
    assert seconds(median=2.0, spread=0.0, local_steps=30) == pytest.approx(15)
    # Also those of a recording without any.
    log = write("client,start,end\n" + "".join(f"{k},0,1000\n" for k in range(MANY)))
    options = {"round_seconds": 1000.0, "local_steps": 10**6, "speed": 10.0, "spread": 0.5}
    one, same = (TRACES["recorded"](MANY, 0, file=log, **options).round(1).completion for _ in range(2))
    assert np.median(one) * 1000 == pytest.approx(10, rel=0.05)
    assert np.log(one).std() == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(one, same)


@pytest.mark.parametrize(
    ("options", "mean", "deviation"),
    [
        ({"kind": "exponential", "seconds": 30.0}, 30, 30),
        ({"kind": "uniform", "low": 3.0, "high": 5.0}, 4, 2 / 12**0.5),
    ],
)
def test_times_of_tasks(options, mean, deviation):
    """They do not depend on E, and differ between rounds and clients."""
    taken = seconds(**options)
    assert taken.mean() == pytest.approx(mean, rel=0.05)
    assert taken.std() == pytest.approx(deviation, rel=0.06)
    np.testing.assert_allclose(taken, seconds(local_steps=77, **options), rtol=0, atol=1.1e-6)
    assert np.array_equal(taken[:50], seconds(num_clients=50, **options))
    for other in ({"t": 2}, {"seed": 4}):
        assert np.corrcoef(taken, seconds(**other, **options))[0, 1] == pytest.approx(0, abs=0.05)
    if "low" in options:
        assert 3 <= taken.min() < 3.01 < 4.99 < taken.max() <= 5


def test_groups_by_index():
    """AsyncFlower: four fifths of the clients are twice as fast; AFL-Lib: three groups."""
    taken = seconds(num_clients=10, spread=0.0, groups=".8/.2", factors="2/1")
    assert taken.tolist() == [5.0] * 8 + [10.0] * 2
    thirds = "0.3333333/0.3333333/0.3333334"
    taken = seconds(num_clients=7, spread=0.0, groups=thirds, factors="1/0.5/0.25")
    assert taken.tolist() == [10.0] * 2 + [20.0] * 3 + [40.0] * 2


LOG = "client,start,end,steps_per_second\n0,0,900,4\n1,0,900,\n2,0,900,8\n3,0,900,\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("spread=0,median=5", [2.5, 2.0, 1.25, 2.0]),
        ("spread=0,median=5,groups=.5/.5,factors=2/.1", [1.25, 1.0, 12.5, 20.0]),
        ("kind=uniform,low=3,high=3", [2.5, 3.0, 1.25, 3.0]),
    ],
)
def test_speeds_beside_a_recording(write, options, expected):
    """Its speeds hold, and are multiplied; a recording without any has these. E is that of the clock."""
    spec = f"recorded:file={write(LOG)},cost=2,local-steps=10+speeds:{options}+lost:p=0.5"
    trace = Federation.of(Settings(trace=spec, num_clients=4, local_steps=99, departures="1=30s")).trace
    seen = timeline(trace)
    found = seen.clock.tasks(100_000_000, 1, np.arange(4))
    np.testing.assert_allclose(found.moment / 1e6, 100 + 2 * np.array(expected))
    assert seen.membership.window(1)[1].tolist() == [NEVER, 30_000_000, NEVER, NEVER]


def test_sessions_have_speeds_in_rounds_and_in_event_time():
    speeds = TRACES["speeds"](MANY, 1, kind="exponential", seconds=600.0)
    slots = sessions(MANY, 1, kind="slots", seconds=600.0, p=0.5, local_steps=100)
    trace = Combined(speeds, slots)
    one, two = trace.round(1), trace.round(2)
    assert one.online.mean() == pytest.approx(0.5, abs=0.03)
    # A task ends within the 600 s of its round, or slot, with probability 1 - 1/e.
    assert (one.completion[one.online] == 1).mean() == pytest.approx(1 - np.exp(-1), abs=0.04)
    both = one.online & two.online
    assert np.corrcoef(one.completion[both], two.completion[both])[0, 1] == pytest.approx(0, abs=0.1)
    found = timeline(trace).clock.tasks(0, 1, np.flatnonzero(one.online))
    alone = timeline(Combined(slots, speeds)).clock.tasks(0, 1, np.flatnonzero(one.online))
    assert np.array_equal(found, alone)


def test_combinations_with_speeds_that_are_refused():
    def made(name, **options):
        return TRACES[name](5, 1, **options)

    speeds = made("speeds")
    for trace in (speeds, Combined(made("bernoulli"), speeds), Combined(speeds, Membership(5, {}, {}))):
        with pytest.raises(ValueError, match=r"speeds need a trace with a clock.* or set round-ends"):
            trace.round(1)
    for option in ({"speed": 2.0}, {"spread": 0.5}):
        with pytest.raises(ValueError, match="trace phones: speed and spread are those of speeds"):
            Combined(made("phones", **option), speeds)
    with pytest.raises(ValueError, match="here is phones and sessions"):
        timeline(Combined(made("phones"), made("sessions"), speeds))
    with pytest.raises(ValueError, match="bernoulli is defined by rounds"):
        timeline(Combined(made("bernoulli"), speeds))
