"""The virtual clock: examples by hand, comparisons with brute force, and invalid input."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from traces import TRACES
from traces.recorded.device_log import Recorded

HEADER = "client,start,end,steps_per_second,up_bytes_per_second\n"


@pytest.fixture
def log(tmp_path):
    """Return a function that writes a device log and makes its trace."""

    def make(text: str, num_clients: int = 4, **options) -> Recorded:
        file = tmp_path / "log.csv"
        file.write_text(text)
        return Recorded(num_clients, 0, file=str(file), **options)

    return make


# Four clients, three rounds of 100 s, E = 10:
#   0  online throughout, 0.1 steps per second: all 10 steps in 100 s, in every round.
#   1  leaves during round 1 and is back 20 s later; 0.2 steps per second.
#        stop:  0..40 s are 8 steps. Round 2: 100..200 s would be 20 steps, 10 are planned; likewise round 3.
#        pause: 0..40 and 60..100 s would be 16 steps, 10 are planned.
#   2  arrives 50 s into round 1, too late for it, and leaves 30 s into round 2 for good; 0.05 steps per
#        second: 1.5 steps, of which 1 is finished.
#   3  online from 200 s to 215 s; the upload of 1000 bytes at 100 per second takes 10 s; the remaining 5 s
#        at 0.1 steps per second are half a step: it drops out in round 3.
BY_HAND = HEADER + ("0,0,300,0.1,\n1,0,40,0.2,\n1,60,300,0.2,\n2,50,130,0.05,\n3,200,215,0.1,100\n")


@pytest.mark.parametrize(("on_interrupt", "second"), [("stop", 0.8), ("pause", 1.0)])
def test_by_hand(log, on_interrupt, second):
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
        # 60 s: client 0 finishes 6 steps; client 1 has 40 s, with stop or pause, and finishes 8.
        (BY_HAND, {"deadline": 60.0}, [0.6, 0.8, 0, 0]),
        (BY_HAND, {"deadline": 60.0, "on_interrupt": "pause"}, [0.6, 0.8, 0, 0]),
        # With 75 s, client 1 has another 15 s after its pause: 11 steps.
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


def test_late_replies(log):
    """E = 10: client 0 is done after 100 s; client 1 leaves after 40 s with 8 steps, or pauses until 60 s.

    Replies arrive by 30, 130, 230 s.
    """
    clock = {"round_seconds": 100.0, "deadline": 30.0, "late": True}
    stop, pause = log(BY_HAND, **clock), log(BY_HAND, **clock, on_interrupt="pause")
    assert stop.has_late_replies
    assert stop.round(1).completion[:2].tolist() == pytest.approx([1, 0.8])
    assert pause.round(1).completion[:2].tolist() == [1, 1]
    assert stop.delay(1).tolist() == pause.delay(1).tolist() == [1, 1, 0, 0]
    # Client 2 has 30 s in round 2: one step, which it hands in as it leaves; with pauses it never finishes.
    assert stop.round(2).completion[2] == pytest.approx(0.1)
    assert stop.delay(2)[2] == 0
    assert log(BY_HAND, **clock, on_interrupt="pause", repeat=False).round(2).completion[2] == 0


def test_log_normal_speeds(log):
    n = 4000
    text = "client,start,end\n" + "".join(f"{k},0,1000\n" for k in range(n))
    options = {"round_seconds": 1000.0, "local_steps": 10**6, "speed": 10.0, "spread": 0.5}
    speeds = log(text, n, **options).round(1).completion * 1000.0
    assert np.median(speeds) == pytest.approx(10, rel=0.05)
    assert np.log(speeds).std() == pytest.approx(0.5, rel=0.05)
    assert np.array_equal(speeds, log(text, n, **options).round(1).completion * 1000.0)


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


def test_the_clock_uses_the_local_steps_of_the_run(log, tmp_path):
    from fedtide.config import Settings
    from fedtide.federation import Federation

    log(BY_HAND)
    spec = f"recorded:round-seconds=100,file={tmp_path / 'log.csv'}"
    trace = Federation.of(Settings(trace=spec, num_clients=4, local_steps=20)).trace
    assert trace.round(1).completion[0] == pytest.approx(0.5)
    trace = Federation.of(
        Settings(trace=spec + ",local-steps=5+lost:p=1", num_clients=4, local_steps=20)
    ).trace
    assert trace.round(1).completion[0] == 1
    assert trace.lost(1).all()
    assert trace.ends(7) == 700_000_000


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,0,10\n4,0,10\n", "line 3: client 4 does not exist, the clients are 0 to 3"),
        ("-1,0,10\n", "line 2: client is -1, give a whole number, 0 or more"),
        ("1e300,0,10\n", "line 2: client is 1e"),
        ("0,5,\n1,5,\n", "no session has an end after its start, give at least one"),
        ("0,5,5\n1,9,9\n", "no session has an end after its start, give at least one"),
        ("0,1772352000000,\n", "line 2: 1772352000000 s is too late, give seconds, not milliseconds"),
        ("0,2026-03-01T08:00Z,9999-12-31T23:59Z\n", "line 2: 9999-12-31T23:59:00Z is too late"),
        ("", "no sessions found"),
    ],
)
def test_invalid_lines(log, rows, message):
    with pytest.raises(ValueError, match=message) as refusal:
        log("client,start,end\n" + rows)
    assert "trace recorded" in str(refusal.value)
    assert "log.csv" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_session_of_zero_seconds_is_none(log):
    with_one, without = (log("client,start,end\n0,0,100\n" + more, 2) for more in ("1,50,50\n", ""))
    assert [r.online.tolist() for r in map(with_one.round, (1, 2))] == [[True, False], [True, False]]
    assert with_one.round(1).completion.tolist() == without.round(1).completion.tolist()


@pytest.mark.parametrize("value", ["0", "-1"])
def test_invalid_speeds(log, value):
    with pytest.raises(ValueError, match=r"line 2: steps_per_second is .* give a positive number"):
        log(HEADER + f"0,0,10,{value},5\n")
    with pytest.raises(ValueError, match="line 2: up_bytes_per_second is"):
        log(HEADER + f"0,0,10,5,{value}\n")
