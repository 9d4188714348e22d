"""Sessions that are drawn: against a recording of them, by their definition, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import TRACES
from traces.base import NEVER, Draws
from traces.recorded.log import DeviceLog, RawSessions
from traces.recorded.recording import Recording

N, DAY, SECOND = 5, 86400.0, 1_000_000
KINDS: list[dict[str, Any]] = [
    {"kind": "exponential", "on": 900.0, "off": 500.0},
    {"kind": "slots", "seconds": 300.0, "p": 0.6},
]


def made(num_clients: int = N, seed: int = 3, **options: Any) -> Any:
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


def recording(sessions: list[tuple[int, float, float]], **options: Any) -> Any:
    device, start, end = np.array(sessions).T
    unknown = np.full(len(sessions), np.nan)
    log = DeviceLog.build(
        RawSessions(device, start, end, unknown, unknown), np.zeros(N), np.full(N, 2 * DAY), str
    )

    class Replayed(Recording, name="replayed"):
        def read(self) -> Any:
            return log, np.arange(N)

    return Replayed(N, 3, repeat=False, **options)


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
    drawn, replayed = made(**KINDS[kind], **options), recording(LOGS[kind], **options)
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
def test_by_definition(options: dict[str, Any], share: float, mean_on: float, mean_off: float) -> None:
    """At any time a share is online, and lengths of spells have their means."""
    seen = made(4000, **options)
    for now in (0, 30, 777, 20_000):
        assert seen.is_online(now * SECOND).mean() == pytest.approx(share, abs=0.03)
    clients = np.flatnonzero(seen.is_online(0))
    leave, begin = seen.leave(0, clients), np.zeros(4000, np.int64)
    begin[clients] = leave
    away = (seen.next_online(begin) - begin)[clients]
    assert leave.mean() == pytest.approx(mean_on * SECOND, rel=0.06)
    assert away.mean() == pytest.approx(mean_off * SECOND, rel=0.06)
    if "kind" not in options:
        assert leave.std() == pytest.approx(mean_on * SECOND, rel=0.08)


def test_slots_are_independent() -> None:
    seen = made(4000, kind="slots", seconds=100.0, p=0.3)
    online = np.array([seen.is_online(now * SECOND) for now in (50, 150, 199, 250)])
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
        seen, now = made(**options, **more), 10**12
        found = seen.tasks(now, 1, np.arange(N))
        assert found.moment.tolist() == [now + seconds * SECOND] * N
        assert found.completion.tolist() == [1.0] * N
        assert (seen.leave(now, np.arange(N)) == NEVER).all()
    trace = made(**options)
    assert (trace.round(10**6).completion == 1).all()


def test_an_earlier_moment() -> None:
    """What was asked before makes no difference, to one client or to all."""
    begin = np.arange(N) * 100 * SECOND
    for options in (*KINDS, {"kind": "always"}):
        fresh, used = made(**options), made(**options)
        used.tasks(10**12, 1, np.flatnonzero(used.is_online(10**12))[:1])
        assert used.next_online(begin).tolist() == fresh.next_online(begin).tolist()
        assert used.is_online(400 * SECOND).tolist() == fresh.is_online(400 * SECOND).tolist()


def test_never() -> None:
    seen = made(kind="slots", p=0.0)
    assert not seen.is_online(10**12).any()
    assert (seen.next_online(np.zeros(N, np.int64)) == NEVER).all()


def test_rounds_see_the_same_sessions() -> None:
    trace = made(on=900.0, off=500.0, round_seconds=300.0)
    seen = made(on=900.0, off=500.0)
    for t in (1, 2, 50, 7):
        assert np.array_equal(trace.round(t).online, seen.is_online((t - 1) * 300 * SECOND))
    assert trace.ends(7) == 2_100_000_000


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
