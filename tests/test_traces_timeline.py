"""Traces in event time: golden timelines, examples by hand, a second implementation, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from test_traces_clock_unrolled import Unrolled, recordings, replayed

from traces import TRACES, Combined, Membership, Trace
from traces.base import NEVER, in_seconds, microseconds
from traces.compose import timeline
from traces.recorded.device_log import Recorded


def micro(seconds: float) -> int:
    return round(seconds * 1e6)


HEADER = "client,start,end,steps_per_second,up_bytes_per_second\n"


def recorded(folder: Path, case: dict[str, Any], opts: dict[str, Any]) -> Recorded:
    """The log of a golden case, with the options of a variant."""
    found = (
        {"upload": 0.0, "cycle": None, "interrupt": "stop", "deadline": 0.0, "partial": True} | case | opts
    )
    lines = []
    for client, start, end, *own in found["sessions"]:
        usual = [x[client] if isinstance(x, list) else x for x in (found["speed"], found["upload"])]
        speed, upload = [*own, *usual[len(own) :]]
        lines.append(f"{client},{start!r},{end!r},{speed!r},{1 / upload if upload else ''}\n")
    file = folder / "log.csv"
    file.write_text(HEADER + "".join(lines))
    return Recorded(
        1 + max(session[0] for session in found["sessions"]),
        0,
        file=str(file),
        repeat=found["cycle"] is not None,
        on_interrupt=found["interrupt"],
        deadline=found["deadline"],
        partial=found["partial"],
        local_steps=found["E"],
        upload_bytes=1.0,
    )


def membership(case: dict[str, Any], num_clients: int) -> Membership:
    """Its events; who departs and comes back, which no trace does, stays away."""
    when: dict[str, dict[int, Any]] = {"arrive": {}, "depart": {}}
    for event in case.get("events", []):
        at = event["round"] if "round" in event else float(event["second"])
        when[event["type"]].setdefault(event["cid"], at)
    founders = case.get("initial_members", range(num_clients))
    arrivals = {client: at for client, at in when["arrive"].items() if client not in founders}
    return Membership(num_clients, arrivals, when["depart"])


def golden_timelines(config: pytest.Config) -> list[Any]:
    return [
        pytest.param((case, name), id=f"{case['id']}-{name}")
        for _, case in cases(config)
        if case["method"] == "event"
        for name in case["timelines"]
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", golden_timelines(metafunc.config))


def test_golden_timelines(golden: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    """Who can be asked at the begin of a round, which is a reply or somebody's coming, and how tasks end."""
    case, name = golden
    rounds, opts = case["timelines"][name], case["variants"][name]["opts"]
    clock = recorded(tmp_path, case, opts)
    members = membership(case, clock.num_clients)
    seen = timeline(Combined(clock, members))
    ends: dict[
        tuple[int, int], tuple[float, float]
    ] = {}  # moment and completion by client and round of the task
    for r in rounds:
        ends |= {(k, task): (moment, s / case["E"]) for k, task, _, s, moment in r["arrived"]}
        ends |= {(k, task): (moment, 1.0 * (why == "lost")) for k, task, why, moment in r["failed"]}
    at_work: dict[int, float] = {}  # until when
    returns = [e["round"] for e in case.get("events", []) if e["type"] == "arrive" and "round" in e]
    now = 0.0
    for t, r in enumerate(rounds, start=1):
        begin, end = seen.membership.window(t)
        if not at_work:
            moments = clock.next_online(np.maximum(begin, micro(now)))
            now = moments[moments < end].min() / 1e6
        assert r["begin"] == now
        free = clock.is_online(micro(now)) & ~np.isin(np.arange(clock.num_clients), [*at_work])
        if t < min(returns, default=np.inf):
            free &= (begin <= micro(now)) & (micro(now) < end)
            limit = opts.get("C", case["C"]) or clock.num_clients
            assert len(r["selected"]) <= min(free.sum(), limit - len(at_work))
            assert len(r["selected"]) == free.sum() or limit < clock.num_clients
        clients = np.array(r["selected"], np.intp)[::-1]
        assert free[clients].all()
        moments, completions = clock.tasks(micro(now), t, clients)
        moments = moments / 1e6
        at_work |= zip(clients.tolist(), moments.tolist(), strict=True)
        for k, *found in zip(clients.tolist(), moments.tolist(), completions.tolist(), strict=True):
            if (k, t) in ends:
                assert found == [*ends[k, t]]
            else:
                assert found[0] > rounds[-1]["end"] or any([k, t] in x.get("cancelled", []) for x in rounds)
        now = r["end"]
        cancelled = {k for k, _ in r.get("cancelled", [])}
        at_work = {k: until for k, until in at_work.items() if until > now and k not in cancelled}


def make(folder: Path, rows: str, num_clients: int, **options: Any) -> Recorded:
    file = folder / "log.csv"
    file.write_text(HEADER + rows)
    return Recorded(num_clients, 0, file=str(file), **options)


# E = 10. Client 0 leaves after 4 s and is back at 6 s, at 2 steps per second; client 1 comes at 3 s.
BY_HAND = "0,0,4,2,\n0,6,100,2,\n1,3,5.25,4,100\n1,50,60,2,50\n"


@pytest.mark.parametrize(
    ("options", "now", "moments", "completions", "leave"),
    [
        # 10 steps take 5 s. It leaves after 4 s with 8 steps.
        ({}, 0.0, [4.0], [0.8], [4.0]),
        # With pauses, the fifth second ends at 7 s.
        ({"on_interrupt": "pause"}, 0.0, [7.0], [1.0], [4.0]),
        ({"on_interrupt": "pause", "deadline": 5.0}, 0.0, [5.0], [0.8], [4.0]),
        ({"on_interrupt": "pause", "deadline": 6.5}, 0.0, [6.5], [0.9], [4.0]),
        ({"deadline": 3.25}, 0.0, [3.25], [0.6], [4.0]),
        ({"deadline": 700.0}, 0.0, [4.0], [0.8], [4.0]),  # round-seconds is 600
        ({"partial": False}, 0.0, [4.0], [0.0], [4.0]),
        # 0.4 s are no step: it drops out as it leaves.
        ({}, 3.6, [4.0, 5.25], [0.0, 0.6], [0.4, 1.65]),
        # Client 1 needs 2.5 s; the upload of 50 bytes, at the rate of the session, is the last half second.
        ({"upload_bytes": 50.0}, 3.0, [4.0, 5.25], [0.2, 0.7], [1.0, 2.25]),
        ({"upload_bytes": 50.0, "on_interrupt": "pause"}, 3.0, [10.0, 50.75], [1.0, 1.0], [1.0, 2.25]),
        # After 3 s of its session, there are 7 s for 5 s of work and 1 s of upload.
        ({"upload_bytes": 50.0}, 53.0, [58.0, 59.0], [1.0, 1.0], [47.0, 7.0]),
        ({"begin": 3.0}, 0.0, [1.0, 2.25], [0.2, 0.9], [1.0, 2.25]),
        ({"cost": 2.0}, 0.0, [4.0], [0.4], [4.0]),
        # There is no more time after 100 s: they never finish, and are free when their last sessions end.
        ({"on_interrupt": "pause", "cost": 20.0}, 52.0, [100.0, 60.0], [0.0, 0.0], [48.0, 8.0]),
        (
            {"on_interrupt": "pause", "cost": 20.0, "deadline": 60.0},
            52.0,
            [112.0] * 2,
            [0.4, 0.0],
            [48.0, 8.0],
        ),
    ],
)
def test_by_hand(
    tmp_path: Path,
    options: dict[str, Any],
    now: float,
    moments: list[float],
    completions: list[float],
    leave: list[float],
) -> None:
    seen = make(tmp_path, BY_HAND, 3, repeat=False, **options)
    clients = np.flatnonzero(seen.is_online(micro(now)))
    assert clients.tolist() == [*range(len(moments))]
    found = seen.tasks(micro(now), 1, clients)
    assert found.moment.tolist() == [*map(micro, moments)]
    assert found.completion.tolist() == completions
    assert seen.leave(micro(now), clients).tolist() == [micro(now) + micro(stay) for stay in leave]


@pytest.mark.parametrize(
    ("options", "now", "moment", "completion"),
    [
        ({}, 0.0, 3.1, 0.75),
        ({"on_interrupt": "pause"}, 0.0, 9.9, 1.0),
        ({"on_interrupt": "pause", "deadline": 6.0}, 0.0, 6.0, 0.75),
        ({}, 2.5, 3.1, 0.0),
    ],
)
def test_the_example_of_the_docs(
    tmp_path: Path, options: dict[str, Any], now: float, moment: float, completion: float
) -> None:
    seen = make(tmp_path, "0,0,3.1,1,\n0,9,50,1,\n", 1, local_steps=4, **options)
    assert seen.tasks(micro(now), 1, np.array([0])) == ([micro(moment)], [completion])


def test_the_next_time_online_by_hand(tmp_path: Path) -> None:
    once, again = (make(tmp_path, BY_HAND, 3, repeat=repeat) for repeat in (False, True))

    def found(trace: Recorded, *begin: float) -> list[float]:
        return in_seconds(trace.next_online(microseconds(begin))).tolist()

    for now, expected in (
        (0.0, [0.0, 3.0, np.inf]),
        (4.0, [6.0, 4.0, np.inf]),
        (5.25, [6.0, 50.0, np.inf]),
        (99.0, [99.0, np.inf, np.inf]),
        (100.0, [np.inf, np.inf, np.inf]),
    ):
        assert found(once, now, now, now) == expected
    assert found(again, 104.0, 99.0, 0.0) == [106.0, 103.0, np.inf]
    assert found(again, np.inf, 205.0, 5.0) == [np.inf, 205.0, np.inf]


@settings(max_examples=300)
@given(
    devices=recordings(),
    begin=st.integers(0, 40),
    seconds=st.integers(0, 60),
    deadline=st.integers(0, 20),
    steps=st.integers(1, 25),
    upload=st.integers(0, 3),
    pause=st.booleans(),
    repeat=st.booleans(),
)
def test_against_unrolled_recordings(
    devices: Any, begin: int, seconds: int, deadline: int, steps: int, upload: int, pause: bool, repeat: bool
) -> None:
    clock = {
        "begin": float(begin),
        "deadline": float(deadline),
        "local_steps": steps,
        "upload_bytes": float(upload),
    }
    seen = replayed(devices, **clock, repeat=repeat, pause=pause)
    now = micro(seconds)
    start = min(origin for origin, _, _ in devices) + begin
    unrolled = [Unrolled(origin, flags, repeat) for origin, flags, _ in devices]
    online = seen.is_online(now)
    assert online.tolist() == [device.online(start + seconds) for device in unrolled]
    expected = [device.next_online(start + seconds) - start for device in unrolled]
    assert in_seconds(seen.next_online(np.full(len(devices), now))).tolist() == expected
    clients = np.flatnonzero(online)[::-1]
    moments, completions = seen.tasks(now, 1, clients)
    leave = in_seconds(seen.leave(now, clients)) - seconds
    for i, k in enumerate(clients.tolist()):
        done, after, stays = unrolled[k].task(start + seconds, steps, upload, deadline, pause)
        assert (completions[i], moments[i], leave[i]) == (done / steps, now + micro(after), stays)


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("third", [1, 2])
def test_time_goes_on(tmp_path: Path, third: int, repeat: bool) -> None:
    """Whoever leaves between two microseconds is not there at the moment that its task has ended."""
    seen = make(tmp_path, f"0,0,{third / 3!r},1,\n1,0,1.1,1,\n", 2, repeat=repeat)
    now, ends = 0, []
    for t in range(1, 30):
        now = int(seen.next_online(np.array([now, NEVER]))[0])
        if now == NEVER:
            break
        assert seen.is_online(now)[0]
        (now,), (completion,) = seen.tasks(now, t, np.array([0]))
        assert completion == 0
        ends.append(now)
    assert ends == [micro(third / 3) + 1_100_000 * cycle for cycle in range(29 if repeat else 1)]


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda phones, n: TRACES["bernoulli"](n, 0), "bernoulli is defined by rounds.* take one of phones"),
        (lambda phones, n: Combined(phones(), TRACES["pools"](n, 0)), "pools is defined by rounds"),
        (lambda phones, n: Combined(phones(), TRACES["late"](n, 0)), "leave late out"),
        (lambda phones, n: phones(late=True), "leave late out"),
        (lambda phones, n: TRACES["lost"](n, 0), "here is none: take one of phones, recorded"),
        (lambda phones, n: Membership(n, {}, {}), "here is none"),
    ],
)
def test_what_is_refused(make_it: Any, says: str) -> None:
    def phones(**options: Any) -> Trace:
        return TRACES["phones"](5, 0, **options)

    with pytest.raises(ValueError, match=says) as refusal:
        timeline(make_it(phones, 5))
    assert "\n" not in str(refusal.value)


def test_a_deadline_beyond_the_round_is_refused_in_rounds_only() -> None:
    phones = TRACES["phones"](5, 0, deadline=700.0)
    assert timeline(phones).availability(1, 0).online.shape == (5,)
    with pytest.raises(ValueError, match="deadline is 700; it must be at most round-seconds, 600"):
        phones.round(1)
