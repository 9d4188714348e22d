"""The virtual clock, in rounds and in event time: golden timelines, examples by hand, and refusals."""

import json

import numpy as np
import pytest
from golden_cases import cases
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtide.config import Settings
from fedtide.federation import Federation
from traces import TRACES, Combined, Membership
from traces.base import NEVER
from traces.compose import timeline
from traces.recorded.device_log import Recorded

HEADER = "client,start,end,steps_per_second,up_bytes_per_second\n"


def micro(seconds):
    return round(seconds * 1e6)


@pytest.fixture
def log(write):
    """Return a function that writes a device log and makes its trace."""

    def make(text, num_clients=4, **options):
        return Recorded(num_clients, 0, file=write(text, "log.csv"), **options)

    return make


# Golden timelines


def recorded(log, case, opts):
    """The log of a golden case, with the options of a variant."""
    found = {"upload": 0.0, "cycle": None, "interrupt": "stop", "deadline": 0.0, "partial": True}
    found |= case | opts
    lines = []
    for client, start, end, *own in found["sessions"]:
        usual = [x[client] if isinstance(x, list) else x for x in (found["speed"], found["upload"])]
        speed, upload = [*own, *usual[len(own) :]]
        lines.append(f"{client},{start!r},{end!r},{speed!r},{1 / upload if upload else ''}\n")
    clock = {"deadline": found["deadline"], "partial": found["partial"], "on_interrupt": found["interrupt"]}
    clock |= {"repeat": found["cycle"] is not None, "local_steps": found["E"], "upload_bytes": 1.0}
    return log(HEADER + "".join(lines), 1 + max(session[0] for session in found["sessions"]), **clock)


def membership(case, num_clients):
    """Its events; who departs and comes back, which no trace does, stays away."""
    when = {"arrive": {}, "depart": {}}
    for event in case.get("events", []):
        at = event["round"] if "round" in event else float(event["second"])
        when[event["type"]].setdefault(event["cid"], at)
    founders = case.get("initial_members", range(num_clients))
    arrivals = {client: at for client, at in when["arrive"].items() if client not in founders}
    return Membership(num_clients, arrivals, when["depart"])


def pytest_generate_tests(metafunc):
    if "golden" in metafunc.fixturenames:
        found = [(case, name) for _, case in cases(metafunc.config) for name in case.get("timelines", ())]
        metafunc.parametrize("golden", found, ids=[f"{case['id']}-{name}" for case, name in found])


def test_golden_timelines(golden, log):
    """When rounds begin, which clients can be asked then, and how their tasks end."""
    case, name = golden
    rounds, opts = case["timelines"][name], case["variants"][name]["opts"]
    clock = recorded(log, case, opts)
    seen = timeline(Combined(clock, membership(case, clock.num_clients)))
    ends = {}  # moment and completion by client and round of the task
    for r in rounds:
        ends |= {(k, task): (moment, s / case["E"]) for k, task, _, s, moment in r["arrived"]}
        ends |= {(k, task): (moment, 1.0 * (why == "lost")) for k, task, why, moment in r["failed"]}
    at_work = {}  # until when
    returns = [e["round"] for e in case.get("events", []) if e["type"] == "arrive" and "round" in e]
    now = 0.0
    for t, r in enumerate(rounds, start=1):
        begin, end = seen.membership.window(t)
        for k, *_ in r.get("stopped", []):
            del at_work[k]
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
                ended = [e[:2] for x in rounds for why in ("cancelled", "stopped") for e in x.get(why, [])]
                assert found[0] > rounds[-1]["end"] or [k, t] in ended
        now = r["end"]
        cancelled = {k for k, _ in r.get("cancelled", [])}
        at_work = {k: until for k, until in at_work.items() if until > now and k not in cancelled}


# In event time, E = 10. Client 0 leaves after 4 s and is back at 6 s, at 2 steps per second; 1 comes at 3 s.
TIMES = HEADER + "0,0,4,2,\n0,6,100,2,\n1,3,5.25,4,100\n1,50,60,2,50\n"
PAUSE = {"on_interrupt": "pause"}
OF_THE_DOCS = HEADER + "0,0,3.1,1,\n0,9,50,1,\n"
FOUR = {"local_steps": 4}


@pytest.mark.parametrize(
    ("text", "options", "now", "moments", "completions", "leave"),
    [
        # 10 steps take 5 s. It leaves after 4 s with 8 steps.
        (TIMES, {}, 0.0, [4.0], [0.8], [4.0]),
        # With pauses, the fifth second ends at 7 s.
        (TIMES, PAUSE, 0.0, [7.0], [1.0], [4.0]),
        (TIMES, PAUSE | {"deadline": 5.0}, 0.0, [5.0], [0.8], [4.0]),
        (TIMES, PAUSE | {"deadline": 6.5}, 0.0, [6.5], [0.9], [4.0]),
        (TIMES, {"deadline": 3.25}, 0.0, [3.25], [0.6], [4.0]),
        (TIMES, {"deadline": 700.0}, 0.0, [4.0], [0.8], [4.0]),  # round-seconds is 600
        (TIMES, {"partial": False}, 0.0, [4.0], [0.0], [4.0]),
        # 0.4 s are no step: it drops out as it leaves.
        (TIMES, {}, 3.6, [4.0, 5.25], [0.0, 0.6], [0.4, 1.65]),
        # Client 1 needs 2.5 s; the upload of 50 bytes, at the rate of the session, is the last half second.
        (TIMES, {"upload_bytes": 50.0}, 3.0, [4.0, 5.25], [0.2, 0.7], [1.0, 2.25]),
        (TIMES, PAUSE | {"upload_bytes": 50.0}, 3.0, [10.0, 50.75], [1.0, 1.0], [1.0, 2.25]),
        # After 3 s of its session, there are 7 s for 5 s of work and 1 s of upload.
        (TIMES, {"upload_bytes": 50.0}, 53.0, [58.0, 59.0], [1.0, 1.0], [47.0, 7.0]),
        (TIMES, {"begin": 3.0}, 0.0, [1.0, 2.25], [0.2, 0.9], [1.0, 2.25]),
        (TIMES, {"cost": 2.0}, 0.0, [4.0], [0.4], [4.0]),
        # There is no more time after 100 s: they never finish, and are free when their last sessions end.
        (TIMES, PAUSE | {"cost": 20.0}, 52.0, [100.0, 60.0], [0.0, 0.0], [48.0, 8.0]),
        (TIMES, PAUSE | {"cost": 20.0, "deadline": 60.0}, 52.0, [112.0] * 2, [0.4, 0.0], [48.0, 8.0]),
        (OF_THE_DOCS, FOUR, 0.0, [3.1], [0.75], [3.1]),
        (OF_THE_DOCS, FOUR | PAUSE, 0.0, [9.9], [1.0], [3.1]),
        (OF_THE_DOCS, FOUR | PAUSE | {"deadline": 6.0}, 0.0, [6.0], [0.75], [3.1]),
        (OF_THE_DOCS, FOUR, 2.5, [3.1], [0.0], [0.6]),
    ],
)
def test_tasks_by_hand(log, text, options, now, moments, completions, leave):
    seen = log(text, 3, repeat=False, **options)
    clients = np.flatnonzero(seen.is_online(micro(now)))
    assert clients.tolist() == [*range(len(moments))]
    found = seen.tasks(micro(now), 1, clients)
    assert found.moment.tolist() == [*map(micro, moments)]
    assert found.completion.tolist() == completions
    assert seen.leave(micro(now), clients).tolist() == [micro(now) + micro(stay) for stay in leave]


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("third", [1, 2])
def test_time_goes_on(log, third, repeat):
    """Whoever leaves between two microseconds is not there at the moment that its task has ended."""
    seen = log(HEADER + f"0,0,{third / 3!r},1,\n1,0,1.1,1,\n", 2, repeat=repeat)
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
    ("make", "says"),
    [
        (lambda phones: TRACES["bernoulli"](5, 0), "bernoulli is defined by rounds.* take one of phones"),
        (lambda phones: Combined(phones(), TRACES["pools"](5, 0)), "pools is defined by rounds"),
        (lambda phones: Combined(phones(), TRACES["late"](5, 0)), "leave late out"),
        (lambda phones: phones(late=True), "leave late out"),
        (lambda phones: TRACES["lost"](5, 0), "here is none: take one of phones, recorded"),
        (lambda phones: Membership(5, {}, {}), "here is none"),
    ],
)
def test_what_has_no_event_time_is_refused(make, says):
    with pytest.raises(ValueError, match=says) as refusal:
        timeline(make(lambda **options: TRACES["phones"](5, 0, **options)))
    assert "\n" not in str(refusal.value)


def test_a_deadline_beyond_the_round_is_refused_in_rounds_only():
    phones = TRACES["phones"](5, 0, deadline=700.0)
    assert timeline(phones).availability(1, 0).online.shape == (5,)
    with pytest.raises(ValueError, match="deadline is 700; it must be at most round-seconds, 600"):
        phones.round(1)


# In rounds. Four clients, three rounds of 100 s, E = 10:
#   0  online throughout, 0.1 steps per second: all 10 steps in 100 s, in every round.
#   1  leaves during round 1 and is back 20 s later; 0.2 steps per second.
#        stop:  0..40 s are 8 steps. Round 2: 100..200 s would be 20 steps, 10 are planned; likewise round 3.
#        pause: 0..40 and 60..100 s would be 16 steps, 10 are planned.
#   2  arrives 50 s into round 1, too late for it, and leaves 30 s into round 2 for good; 0.05 steps per
#        second: 1.5 steps, of which 1 is finished.
#   3  online from 200 s to 215 s; the upload of 1000 bytes at 100 per second takes 10 s; the remaining 5 s
#        at 0.1 steps per second are half a step: it drops out in round 3.
BY_HAND = HEADER + "0,0,300,0.1,\n1,0,40,0.2,\n1,60,300,0.2,\n2,50,130,0.05,\n3,200,215,0.1,100\n"


@pytest.mark.parametrize(("on_interrupt", "second"), [("stop", 0.8), ("pause", 1.0)])
def test_rounds_by_hand(log, on_interrupt, second):
    trace = log(BY_HAND, round_seconds=100.0, on_interrupt=on_interrupt, upload_bytes=1000.0)
    rounds = [trace.round(t) for t in (1, 2, 3)]
    assert [r.online.tolist() for r in rounds] == [
        [True, True, False, False],
        [True, True, True, False],
        [True, True, False, True],
    ]
    expected = np.array([[1, second, 0, 0], [1, 1, 0.1, 0], [1, 1, 0, 0]], np.float32)
    assert np.array_equal([r.completion for r in rounds], expected)
    assert [trace.ends(t) for t in (1, 2, 3)] == [100_000_000, 200_000_000, 300_000_000]


ONE, TWO = HEADER + "0,0,100,0.1,20\n", "client,start,end\n0,0,100\n1,0,35\n"


@pytest.mark.parametrize(
    ("text", "options", "completion"),
    [
        # In 60 s, client 1 has 40 s and finishes 8 steps; in 75 s it has 15 s after its pause: 11 steps.
        (BY_HAND, {"deadline": 60.0}, [0.6, 0.8, 0, 0]),
        (BY_HAND, {"deadline": 75.0, "on_interrupt": "pause"}, [0.7, 1.0, 0, 0]),
        (BY_HAND, {"partial": False}, [1, 0, 0, 0]),
        # 100 s at 0.1 steps per second, of which the upload takes 500 / 20 = 25 s: 7 steps.
        (ONE, {"upload_bytes": 500.0}, [0.7]),
        (ONE, {"upload_bytes": 5000.0}, [0]),
        (TWO, {"repeat": False}, [1, 0.3]),  # the fractions of time
        (TWO, {"speed": 0.2}, [1, 0.7]),
        (HEADER + "0,0,100,0.2,\n1,0,100,,\n", {"speed": 0.3, "cost": 4.0}, [0.5, 0.7]),
    ],
)
def test_completions_by_hand(log, text, options, completion):
    first = log(text, len(completion), round_seconds=100.0, **options).round(1)
    assert first.completion.tolist() == pytest.approx(completion)
    assert first.online[:2].all()


def test_a_session_of_zero_seconds_is_none(log):
    trace = log("client,start,end\n0,0,100\n1,50,50\n", 2)
    assert [trace.round(t).online.tolist() for t in (1, 2)] == [[True, False]] * 2


def test_the_recording_begins_at_the_first_start(log):
    text = "client,start,end\n0,1700000000,1700000100\n1,1700000050,1700000200\n"
    trace = log(text, 2, round_seconds=50.0)
    online = [trace.round(t).online.tolist() for t in range(1, 6)]
    assert online == [[True, False], [True, True], [False, True], [False, True], [True, False]]
    later = log(text, 2, round_seconds=50.0, begin=100.0)
    assert later.round(1).online.tolist() == [False, True]


@settings(max_examples=60)
@example(  # no whole number of microseconds
    start=0.0, length=1.0, round_seconds=0.33203125, begin=0.0, pause=False, other=1.0, rounds=[1]
)
@given(
    start=st.floats(0, 2e9),
    length=st.floats(1e-3, 1e7),
    round_seconds=st.floats(1e-3, 1e7),
    begin=st.floats(0, 1e7),
    pause=st.booleans(),
    other=st.floats(1e-3, 1e7),
    rounds=st.lists(st.integers(1, 10**6), min_size=1, max_size=20),
)
def test_no_rounding_opens_a_gap_between_cycles(
    log, write, start, length, round_seconds, begin, pause, other, rounds
):
    options = {"on_interrupt": "pause" if pause else "stop", "begin": begin, "round_seconds": round_seconds}
    trace = log(f"client,start,end\n0,{start!r},{start + length!r}\n", 1, **options)
    assert all(trace.round(t).completion[0] == 1 for t in rounds)
    phones = [{"active": [0], "inactive": [end], "finish_time": end} for end in (length, other)]
    trace = TRACES["phones"](2, 0, file=write(json.dumps(phones)), **options)
    assert all((trace.round(t).completion == 1).all() for t in rounds)


def test_any_order_of_rounds_and_of_lines(log):
    rows = ["0,0,70,0.1", "1,10,90,0.2", "0,80,400,0.3", "1,95,300,0.1", "2,50,60,"]
    header = "client,start,end,steps_per_second\n"
    trace = log(header + "\n".join(rows) + "\n", 3, round_seconds=30.0)
    in_order = {t: trace.round(t) for t in range(1, 40)}
    shuffled = log(header + "\n".join(rows[::-1]) + "\n", 3, round_seconds=30.0)
    for t in (39, 7, 22, 1, 39):
        for a, b in zip(shuffled.round(t), in_order[t], strict=True):
            assert np.array_equal(a, b)


def test_the_clock_uses_the_local_steps_of_the_run(write):
    spec = f"recorded:round-seconds=100,file={write(BY_HAND)}"
    trace = Federation.of(Settings(trace=spec, num_clients=4, local_steps=20)).trace
    assert trace.round(1).completion[0] == pytest.approx(0.5)
    spec += ",local-steps=5+lost:p=1"
    trace = Federation.of(Settings(trace=spec, num_clients=4, local_steps=20)).trace
    assert trace.round(1).completion[0] == 1
    assert trace.lost(1).all()
    assert trace.ends(7) == 700_000_000
