"""Sessions of one device that overlap, and sessions without an end."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.recorded.device_log import read_device_log
from traces.recorded.fedscale import read_fedscale

HEADER = "client,start,end,steps_per_second\n"


def sessions(log):
    """Device, start, end, speed (None if unknown), and when the device leaves, of each session."""
    device = np.repeat(np.arange(log.num_devices), np.diff(log.first))
    speed = [None if np.isnan(value) else value for value in log.speed]
    start, end, leave = (moments / 1e6 for moments in (log.start, log.end, log.leave))
    return [*zip(device.tolist(), start, end, speed, leave, strict=True)]


@pytest.mark.parametrize(
    ("rows", "expected", "says"),
    [
        (  # the second starts before the first ends
            "0,0,10,1\n0,5,20,2\n",
            [(0, 0, 5, 1, 20), (0, 5, 20, 2, 20)],
            r"log.csv, line 3: the session from 5 s overlaps the device's session from 0 s to 10 s; 1 ",
        ),
        (  # two within one: the first of these has a speed, which the other inherits
            "0,30,40,\n0,0,100,1\n0,10,20,2\n0,100,110,\n",
            [(0, 0, 10, 1, 110), (0, 10, 30, 2, 110), (0, 30, 100, 2, 110), (0, 100, 110, None, 110)],
            r"line 4: the session from 10 s overlaps .* from 0 s to 100 s; 2 sessions joined",
        ),
        (  # the same start; of another device nothing is inherited
            "1,0,30,\n0,0,10,1\n0,0,30,\n",
            [(0, 0, 30, 1, 30), (1, 0, 30, None, 30)],
            r"line 4: the session from 0 s overlaps",
        ),
    ],
    ids=["partly", "within", "same start"],
)
def test_overlapping_sessions_are_joined(write, rows, expected, says):
    path = write(HEADER + rows, "log.csv")
    with pytest.warns(UserWarning, match=says):
        assert sessions(read_device_log("test", path, 2)) == expected


def test_overlapping_sessions_of_phones(write):
    phone = {"active": [0, 5], "inactive": [8, 9], "finish_time": 10, "computation": 1}
    path = write(str({1: phone}).replace("'", '"').replace("1:", '"1":'))
    with pytest.warns(UserWarning, match="phone '1': the session from 5 s overlaps"):
        log = read_fedscale("test", path)
    assert np.array([log.start, log.end, log.leave]).tolist() == [[0, 5e6], [5e6, 9e6], [9e6, 9e6]]


times = st.integers(0, 12)
spans = st.tuples(times, times).filter(lambda pair: pair[0] < pair[1])


@given(rows=st.lists(st.tuples(st.integers(0, 1), spans, st.sampled_from(["", "1", "2"])), min_size=1))
def test_at_every_moment_the_session_that_started_last_holds(write, rows):
    path = write(HEADER + "".join(f"{k},{a},{b},{speed}\n" for k, (a, b), speed in rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sessions(read_device_log("test", path, 2))
    for client in (0, 1):
        own = sorted(((a, b, speed) for k, (a, b), speed in rows if k == client), key=lambda row: row[0])
        for now in np.arange(0.5, 13):
            holding = [(speed, leave) for k, a, b, speed, leave in found if k == client and a <= now < b]
            assert len(holding) == any(a <= now < b for a, b, _ in own)
            if not holding:
                continue
            i = max(i for i, row in enumerate(own) if row[0] <= now)
            while not own[i][2] and any(own[i][0] < b for _, b, _ in own[:i]):
                i -= 1
            speed = float(own[i][2]) if own[i][2] else None
            away = (t for t in np.arange(now, 14) if not any(a <= t < b for a, b, _ in own))
            assert holding == [(speed, next(away) - 0.5)]


@pytest.mark.parametrize(
    "text",
    [
        "client,start,end\n0,0,\n1,5,30\n1,40,\n0,50,60\n",
        (
            '{"client": 0, "start": 0, "end": null}\n{"client": 1, "start": 5, "end": 30}\n'
            '{"client": 1, "start": 40}\n{"client": 0, "start": 50, "end": 60}\n'
        ),
    ],
    ids=["csv", "json"],
)
def test_a_session_without_an_end_lasts_until_the_end_of_the_log(write, text):
    with pytest.warns(UserWarning, match=r"line \d: the session from 50 s overlaps .* from 0 s to 60 s"):
        found = sessions(read_device_log("test", write(text), 2))
    assert [row[:3] for row in found] == [(0, 0, 50), (0, 50, 60), (1, 5, 30), (1, 40, 60)]


def test_the_latest_time_in_a_log_may_be_a_start(write):
    """The session that starts then has no duration, and is left out."""
    found = sessions(read_device_log("test", write("client,start,end\n0,2,\n1,9,\n"), 2))
    assert found == [(0, 2, 9, None, 9)]
