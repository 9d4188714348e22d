"""Sessions that are drawn: against a recording of them, by their definition, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import TRACES, Trace
from traces.draws import Draws
from traces.recorded.clock import VirtualClock
from traces.recorded.sessions import DeviceLog, Sessions
from traces.timeline import Timeline, timeline

N, DAY = 5, 86400.0
KINDS: list[dict[str, Any]] = [
    {"kind": "exponential", "on": 900.0, "off": 500.0},
    {"kind": "slots", "seconds": 300.0, "p": 0.6},
]


def made(num_clients: int = N, seed: int = 3, **options: Any) -> Trace:
    return TRACES["sessions"](num_clients, seed, **options)


def by_definition(kind: str, **options: float) -> list[tuple[int, float, float]]:
    """The sessions of the first day, drawn spell by spell."""
    draws, sessions = Draws(3, "sessions"), []

    def draw(k: int, number: int) -> float:
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
                sessions.append((k, start, start + length))
            start, online, number = start + length, not online, number + 1
    return sessions


def recording(sessions: list[tuple[int, float, float]], **options: Any) -> Timeline:
    device, start, end = np.array(sessions).T
    unknown = np.full(len(sessions), np.nan)
    log = DeviceLog.build(
        Sessions(device, start, end, unknown, unknown), np.zeros(N), np.full(N, 2 * DAY), str
    )

    class Replayed(VirtualClock):
        name = "replayed"

        def _read_log(self, file: str) -> Any:
            return log, np.arange(N)

    return timeline(Replayed(N, 3, repeat=False, **options))


LOGS = [by_definition(**kind) for kind in KINDS]


@settings(max_examples=150)
@given(
    kind=st.sampled_from([0, 1]),
    moments=st.lists(st.integers(0, 40_000), min_size=1, max_size=5),
    deadline=st.sampled_from([0.0, 250.0, 2000.0]),
    pause=st.booleans(),
    partial=st.booleans(),
)
def test_against_a_recording_of_them(
    kind: int, moments: list[int], deadline: float, pause: bool, partial: bool
) -> None:
    """The moments, in halves of seconds, come in any order."""
    options: dict[str, Any] = {
        "deadline": deadline,
        "on_interrupt": "pause" if pause else "stop",
        "partial": partial,
        "speed": 0.02,
        "spread": 1.0,
    }
    drawn, replayed = timeline(made(**KINDS[kind], **options)), recording(LOGS[kind], **options)
    for now in (moment / 2 for moment in moments):
        online = drawn.online(now)
        assert online.tolist() == replayed.online(now).tolist()
        later = np.append(np.full(N - 2, now), [now + 500, np.inf])
        np.testing.assert_allclose(drawn.next_online(later), replayed.next_online(later), rtol=1e-12)
        clients = np.flatnonzero(online)[::-1]
        np.testing.assert_allclose(drawn.leave(now, clients), replayed.leave(now, clients), rtol=1e-9)
        found, expected = drawn.tasks(now, 1, clients), replayed.tasks(now, 1, clients)
        np.testing.assert_allclose(found.moment, expected.moment, rtol=0, atol=1.1e-6)
        assert found.completion.tolist() == expected.completion.tolist()


@pytest.mark.parametrize(
    ("options", "share", "mean_on", "mean_off"),
    [
        ({"on": 900.0, "off": 300.0}, 0.75, 900, 300),
        # Runs of slots are geometric: 1 / 0.8 slots offline, 1 / 0.2 online.
        ({"kind": "slots", "seconds": 60.0, "p": 0.8}, 0.8, 300, 75),
    ],
)
def test_by_definition(options: dict[str, Any], share: float, mean_on: float, mean_off: float) -> None:
    """At any time a share is online, and lengths of spells have their means."""
    seen = timeline(made(4000, **options))
    for now in (0.0, 30.0, 777.0, 20_000.0):
        assert seen.online(now).mean() == pytest.approx(share, abs=0.03)
    lengths: dict[bool, list[Any]] = {True: [], False: []}
    now = np.zeros(4000)
    clients = np.flatnonzero(seen.online(0.0))
    leave = seen.leave(0.0, clients)
    lengths[True] = leave.tolist()
    now[clients] = leave
    lengths[False] = (seen.next_online(now) - now)[clients].tolist()
    assert np.mean(lengths[True]) == pytest.approx(mean_on, rel=0.06)
    assert np.mean(lengths[False]) == pytest.approx(mean_off, rel=0.06)
    if "kind" not in options:
        assert np.std(lengths[True]) == pytest.approx(mean_on, rel=0.08)


def test_slots_are_independent() -> None:
    seen = timeline(made(4000, kind="slots", seconds=100.0, p=0.3))
    online = np.array([seen.online(now) for now in (50.0, 150.0, 199.0, 250.0)])
    assert (online[1] == online[2]).all()
    for one, other in ((0, 1), (1, 3), (0, 3)):
        assert np.corrcoef(online[one], online[other])[0, 1] == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("options", [{"kind": "always"}, {"kind": "slots", "p": 1.0}])
def test_always(options: dict[str, Any]) -> None:
    """A task takes the time of a round unless there is a speed."""
    for more, seconds in (
        ({}, 600.0),
        ({"speed": 2.0}, 5.0),
        ({"speed": 0.01, "on_interrupt": "pause"}, 1000.0),
    ):
        seen = timeline(made(**options, **more))
        found = seen.tasks(1e6, 1, np.arange(N))
        assert found.moment.tolist() == [1e6 + seconds] * N
        assert found.completion.tolist() == [1.0] * N
        assert np.isinf(seen.leave(1e6, np.arange(N))).all()
    trace = made(**options)
    assert (trace.round(10**6).completion == 1).all()


def test_never() -> None:
    seen = timeline(made(kind="slots", p=0.0))
    assert not seen.online(1e6).any()
    assert np.isinf(seen.next_online(np.zeros(N))).all()


def test_rounds_see_the_same_sessions() -> None:
    trace = made(on=900.0, off=500.0, round_seconds=300.0)
    seen = timeline(made(on=900.0, off=500.0))
    for t in (1, 2, 50, 7):
        assert np.array_equal(trace.round(t).online, seen.online((t - 1) * 300.0))
    assert trace.seconds(7) == 2100


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "slots", "on": 60.0}, "on is 60.0, but slots has no on"),
        ({"p": 0.3}, "p is 0.3, but exponential has no p"),
        ({"kind": "slots", "p": 1.5}, "p is 1.5; it must be from 0 to 1"),
        ({"kind": "slot"}, "kind is 'slot'; choose one of always, exponential, slots; did you mean slots?"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        made(**options)


def test_draws_are_uniform_and_differ() -> None:
    """By client, number, seed and purpose."""
    clients, numbers = (a.ravel() for a in np.meshgrid(np.arange(300), np.arange(300)))
    drawn = Draws(1, "one").uniform(clients, numbers)
    assert ((drawn > 0) & (drawn < 1)).all()
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((counts - 900) ** 2 / 900).sum() < 160  # chi-squared, 99 degrees of freedom
    table = drawn.reshape(300, 300)
    for one, other in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert np.corrcoef(one.ravel(), other.ravel())[0, 1] == pytest.approx(0, abs=0.015)
    for draws in (Draws(2, "one"), Draws(1, "other")):
        assert np.corrcoef(drawn, draws.uniform(clients, numbers))[0, 1] == pytest.approx(0, abs=0.015)
