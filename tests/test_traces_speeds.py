"""Speeds that are drawn: their distributions, what they are combined with, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from traces import TRACES, Combined, Membership, Trace
from traces.base import NEVER
from traces.compose import timeline

N = 4000


def seconds(t: int = 1, num_clients: int = N, seed: int = 3, **options: Any) -> np.ndarray:
    """How long tasks of round t take where everybody is always online."""
    clock, now = timeline(TRACES["speeds"](num_clients, seed, **options)).clock, 700_000_000_000
    assert clock.is_online(now).all()
    found = clock.tasks(now, t, np.arange(num_clients))
    assert (found.completion == 1).all()
    return (found.moment - now) / 1e6


def test_lognormal() -> None:
    taken = seconds(median=2.0, spread=0.5)
    assert np.median(taken) == pytest.approx(5, rel=0.05)
    assert np.log(taken).std() == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(taken, seconds(t=9, median=2.0, spread=0.5))
    assert np.array_equal(taken[:50], seconds(num_clients=50, median=2.0, spread=0.5))
    assert seconds(median=2.0, spread=0.0, local_steps=30) == pytest.approx(15)


@pytest.mark.parametrize(
    ("options", "mean", "deviation"),
    [
        ({"kind": "exponential", "seconds": 30.0}, 30, 30),
        ({"kind": "uniform", "low": 3.0, "high": 5.0}, 4, 2 / 12**0.5),
    ],
)
def test_times_of_tasks(options: dict[str, Any], mean: float, deviation: float) -> None:
    """They do not depend on E, and differ between rounds and clients."""
    taken = seconds(**options)
    assert taken.mean() == pytest.approx(mean, rel=0.05)
    assert taken.std() == pytest.approx(deviation, rel=0.06)
    np.testing.assert_allclose(taken, seconds(local_steps=77, **options), rtol=0, atol=1.1e-6)
    assert np.array_equal(taken[:50], seconds(num_clients=50, **options))
    assert np.corrcoef(taken, seconds(t=2, **options))[0, 1] == pytest.approx(0, abs=0.05)
    assert np.corrcoef(taken, seconds(seed=4, **options))[0, 1] == pytest.approx(0, abs=0.05)
    if "low" in options:
        assert 3 <= taken.min() < 3.01 < 4.99 < taken.max() <= 5


def test_groups_by_index() -> None:
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
def test_beside_a_recording(write: Callable[..., str], options: str, expected: list[float]) -> None:
    """Its speeds hold, and are multiplied; a recording without any has these. E is that of the clock."""
    from fedtide.config import Settings
    from fedtide.federation import Federation

    log = write(LOG)
    spec = f"recorded:file={log},cost=2,local-steps=10+speeds:{options}+lost:p=0.5"
    trace = Federation.of(Settings(trace=spec, num_clients=4, local_steps=99, departures="1=30s")).trace
    seen = timeline(trace)
    found = seen.clock.tasks(100_000_000, 1, np.arange(4))
    np.testing.assert_allclose(found.moment / 1e6, 100 + 2 * np.array(expected))
    assert seen.membership.window(1)[1].tolist() == [NEVER, 30_000_000, NEVER, NEVER]


def test_sessions_have_them_in_rounds_and_in_event_time() -> None:
    speeds = TRACES["speeds"](N, 1, kind="exponential", seconds=600.0)
    sessions = TRACES["sessions"](N, 1, kind="slots", seconds=600.0, p=0.5, local_steps=100)
    trace = Combined(speeds, sessions)
    one, two = trace.round(1), trace.round(2)
    assert one.online.mean() == pytest.approx(0.5, abs=0.03)
    # A task ends within the 600 s of its round, or slot, with probability 1 - 1/e.
    assert (one.completion[one.online] == 1).mean() == pytest.approx(1 - np.exp(-1), abs=0.04)
    both = one.online & two.online
    assert np.corrcoef(one.completion[both], two.completion[both])[0, 1] == pytest.approx(0, abs=0.1)
    found = timeline(trace).clock.tasks(0, 1, np.flatnonzero(one.online))
    alone = timeline(Combined(sessions, speeds)).clock.tasks(0, 1, np.flatnonzero(one.online))
    assert np.array_equal(found, alone)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "uniform", "median": 2.0}, "median is 2.0, but uniform has no median"),
        ({"low": 1.5}, "low is 1.5, but lognormal has no low"),
        ({"kind": "uniform", "low": 3.0}, "low is 3; it must be at most high, 2"),
        ({"groups": ".8/.2"}, "there are 2 groups and 1 factors, give a factor for each group"),
        ({"groups": ".8/.1", "factors": "1/2"}, "groups is '.8/.1'; the shares must add up to 1"),
        ({"groups": ".8/x", "factors": "1/2"}, "groups is '.8/x'; give positive numbers such as .8/.2"),
        ({"groups": ".8/.2", "factors": "1/-2"}, "factors is '1/-2'; give positive numbers"),
        ({"groups": "nan", "factors": "1"}, "groups is 'nan'; give positive numbers"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TRACES["speeds"](5, 1, **options)


def test_combinations_that_are_refused() -> None:
    def made(name: str, **options: Any) -> Trace:
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
