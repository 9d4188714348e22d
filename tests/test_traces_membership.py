import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import Bernoulli, Combined, Membership, parse_rounds, written_rounds
from traces.base import NEVER, microseconds


def test_by_hand():
    # 0 stays; 1 arrives in round 2; 2 departs in round 3; 3 is a member in round 2 only.
    trace = Membership(4, {0: 1, 1: 2, 3: 2}, {2: 3, 3: 3})
    expected = {1: [1, 0, 1, 0], 2: [1, 1, 1, 1], 3: [1, 1, 0, 0], 4: [1, 1, 0, 0], 10**9: [1, 1, 0, 0]}
    online = Bernoulli(4, 3, p=0.5)
    both = Combined(online, trace)
    for t in (3, 1, 4, 2, 2, 10**9):
        for array in trace.round(t):
            assert array.tolist() == expected[t]
        assert both.round(t).member.tolist() == expected[t]
        assert both.round(t).online.tolist() == (online.round(t).online & expected[t]).tolist()
    assert both.participation(1).tolist() == [0.5] * 4


def test_by_second_by_hand():
    """Clients 0 and 1 by second, 2 by round, 3 arrives by round and departs by second."""
    trace = Membership(5, {0: 4.0, 2: 2, 3: 3}, {1: 10.5, 2: 4, 3: 20.0})
    assert trace.by_second
    expected = {
        1: ([4, -np.inf, np.inf, np.inf, -np.inf], [np.inf, 10.5, np.inf, 20, np.inf]),
        3: ([4, -np.inf, -np.inf, -np.inf, -np.inf], [np.inf, 10.5, np.inf, 20, np.inf]),
        4: ([4, -np.inf, -np.inf, -np.inf, -np.inf], [np.inf, 10.5, -np.inf, 20, np.inf]),
    }
    for t, window in expected.items():
        begin, end = trace.window(t)
        assert begin.tolist() == microseconds(window[0]).tolist()
        assert end.tolist() == microseconds(window[1]).tolist()
    with pytest.raises(ValueError, match="moments in seconds need event time, set round-ends"):
        Combined(Bernoulli(5, 3), trace).round(1)
    assert not Membership(5, {0: 4}, {1: 10}).by_second


@pytest.mark.parametrize(
    ("arrivals", "departures", "message"),
    [
        ({4: 2}, {}, "arrivals: client 4 does not exist, give clients from 0 to 3"),
        ({}, {-1: 2}, "departures: client -1 does not exist"),
        ({1: 0}, {}, "arrivals: client 1 has round 0"),
        ({}, {1: -2}, "departures: client 1 has round -2"),
        ({2: 5}, {2: 5}, "client 2 departs in round 5 but arrives in round 5"),
        ({2: 5}, {2: 3}, "client 2 departs in round 3 but arrives in round 5"),
        ({}, {0: 1}, "client 0 departs in round 1 but arrives in round 1"),
        ({1: NEVER}, {1: 9}, "client 1 departs in round 9 but arrives never"),
        ({1: 5.0}, {1: 5.0}, "client 1 departs at 5 s but arrives at 5 s"),
        ({}, {1: 0.0}, "client 1 departs at 0 s but arrives at 0 s"),
        ({1: -0.5}, {}, "arrivals: client 1 has moment -0.5 s, give 0 or more"),
        ({1: float("nan")}, {}, "arrivals: client 1 has moment nan s"),
    ],
)
def test_invalid_rounds(arrivals, departures, message):
    with pytest.raises(ValueError, match=message):
        Membership(4, arrivals, departures)


@pytest.mark.parametrize(
    ("text", "rounds"),
    [
        ("", {}),
        ("  ", {}),
        ("10=5,11=20", {10: 5, 11: 20}),
        ("10-11=never,3=4", {10: NEVER, 11: NEVER, 3: 4}),
        (" 10=5 , 11=20 ", {10: 5, 11: 20}),
        ("10-14=5", dict.fromkeys(range(10, 15), 5)),
        ("3-3=1,0=2", {3: 1, 0: 2}),
        ("10=3600s, 2-3=33.5s,4=7", {10: 3600.0, 2: 33.5, 3: 33.5, 4: 7}),
    ],
)
def test_parse(text, rounds):
    parsed = parse_rounds(text)
    assert parsed == rounds
    assert [*map(type, parsed.values())] == [*map(type, rounds.values())]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10=5,11:20", r"part 2 \('11:20'\) of the client=round list cannot be read, write it like 10=5"),
        ("10=5,", r"part 2 \(''\).*cannot be read"),
        (",", r"part 1 \(''\).*cannot be read"),
        ("-1=5", r"part 1 .*cannot be read"),
        ("1=-5", r"part 1 .*cannot be read"),
        ("1=5.0", r"part 1 .*cannot be read"),
        ("1=5 s", r"part 1 .*cannot be read"),
        ("1=.5s", r"part 1 .*cannot be read"),
        ("1=0.1234567s", r"part 1 .*cannot be read"),
        ("1=٣", r"part 1 .*cannot be read"),
        ("1=" + "9" * 5000, r"part 1 \('1=9{35}\.\.\.'\)"),
        ("14-10=5", r"part 1 \('14-10=5'\).*runs backwards"),
        ("10=5,10=6", "part 2 .*names client 10 a second time"),
        ("0-5=2,9=1,3-4=7", "part 3 .*names client 3 a second time"),
        ("0-999999999=5", "part 1 .*more than 1000000 clients"),
    ],
)
def test_parse_invalid(text, message):
    with pytest.raises(ValueError, match=message) as refusal:
        parse_rounds(text)
    assert "\n" not in str(refusal.value)


@given(st.one_of(st.text(), st.text(alphabet="0123456789=-,.s never\n", max_size=30)))
def test_parse_raises_nothing_but_value_error(text):
    message, rounds = "one line", {}
    try:
        rounds = parse_rounds(text)
    except ValueError as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert all(type(client) is int and type(t) in (int, float) for client, t in rounds.items())


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 10**6), max_size=20), st.integers(1, 10**6))
def test_parse_reads_back_what_was_written(rounds, divisor):
    moments = {client: float(f"{t / divisor:.6f}") for client, t in rounds.items()}
    for when in (rounds, moments, dict.fromkeys(rounds, NEVER)):
        assert parse_rounds(written_rounds(when)) == when
