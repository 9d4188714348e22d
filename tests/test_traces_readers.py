"""Tables of numbers: what is read, and what is refused, with file and line."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.files.tables import read_numbers
from traces.recorded.round_table import RoundTable


def lines(path):
    """Line numbers and values; None for a missing one."""
    found = read_numbers("test", path, ("a", "b"), ("c",))
    return [(number, tuple(None if np.isnan(v) else v for v in values)) for number, values in found]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b,c\n1,2.5,\n\n# a note\n-3e2,.5,7\n", [(2, (1.0, 2.5, None)), (5, (-300.0, 0.5, 7.0))]),
        ('{"a": 1, "b": 2.5}\n{"c": 7, "a": -300, "b": 0.5}\n', [(1, (1, 2.5, None)), (2, (-300, 0.5, 7))]),
        (b"\xef\xbb\xbfa,b\r\n 1 , 2\r\n", [(2, (1.0, 2.0, None))]),
        (b'\xef\xbb\xbf{"a":1,"b":2}\r\n', [(1, (1.0, 2.0, None))]),
        ("a,b\n1,2\n", [(2, (1.0, 2.0, None))]),
        ("b,x,A\n2,5,1\n", [(2, (1.0, 2.0, None))]),
        ('x,b,a\n"y,z",2,1\n', [(2, (1.0, 2.0, None))]),
        ('x;b;a\n"y;z, ";2;1\n', [(2, (1.0, 2.0, None))]),
        ("a;b\n-1,5;2,25e1\n1;2\n", [(2, (-1.5, 22.5, None)), (3, (1.0, 2.0, None))]),
        ("", []),
    ],
    ids=[
        "csv",
        "json",
        "mark",
        "json-mark",
        "optional",
        "order",
        "other-columns",
        "semicolons",
        "commas",
        "empty",
    ],
)
def test_what_is_read(write, content, expected):
    assert lines(write(content)) == expected


@pytest.mark.parametrize("torn", ["3,4", "3", "3,40"])
def test_a_torn_last_line_is_left_out_with_a_warning(write, torn):
    path = write(f"a,b\n1,2\n{torn}")
    with pytest.warns(UserWarning, match="line 3: no newline at the end, left out as torn"):
        assert lines(path) == [(2, (1.0, 2.0, None))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a|b\n1|2\n", "line 1: the header is 'a|b', expected the columns a, b"),
        ("a\tb\n1\t2\n", r"line 1: the header is 'a\\tb'"),
        ("a,d\n", "line 1: the header is 'a,d'"),
        ("1,2\n3,4\n", "line 1: the header is '1,2'"),
        ("a,b,B\n", "line 1: there are 2 columns b"),
        ("a,b\n1;2\n", "line 2: 2 values expected as in the header, found 1"),
        ("a,b\n1,2,3\n", "line 2: 2 values expected as in the header, found 3"),
        ("a,b\n1,\n", "line 2: b is missing"),
        ('a,b\n"1,2\n', r"line 2: not a line of CSV \(unexpected end of data\)"),
        ("a,b\n1,0x1\n", "line 2: '0x1' is not a finite number"),
        ("a,b\n1,1_000\n", "line 2: '1_000' is not a finite number"),
        ("a;b\n1,5;1\n1.500;2\n", "line 3: '1.500': other decimals are marked by ','; write all alike"),
        ("a,b\n1,\u0661\n", "line 2: .* is not a finite number"),
        ("a,b\n1," + "9" * 400 + "\n", "line 2: '9*[.]{3}' is not a finite number"),
        ("a,b\n1," + "9" * 70000 + "\n", "line 2: longer than 65536 bytes"),
        (b"\x89PNG\r\n\x1a\n", "line 1: not UTF-8 text"),
        (b"a,b\n1,\xff\n", "line 2: not UTF-8 text"),
        ('{"a": 1}\n', "line 1: b is missing"),
        ('{"a": 1, "b": NaN}\n', "line 1: 'nan' is not a finite number"),
        ('{"a": 1, "b": -Infinity}\n', "line 1: '-inf' is not a finite number"),
        ('{"a": 1, "b": ' + "9" * 5000 + "}\n", "line 1: 'inf' is not a finite number"),
        ('{"a": 1, "b": true}\n', "line 1: b is 'True', give a number"),
        ('{"a": 1, "b": "x"}\n', "line 1: 'x' is not a finite number"),
        ('{"a": 1, "b": [2]}\n', "line 1: b is .*, give a number"),
        ('{"a": 1, "b": 2\n', "line 1: not JSON"),
        ('{"a": 1, "b": 2}\n[1, 2]\n', "line 2: .* is not an object"),
        ('{"a": 1, "b": 2}\n1,2\n', "line 2: not JSON"),
        ('{"a": ' + "[" * 30000 + "\n", "line 1: not JSON .*nested too deeply"),
    ],
)
def test_invalid_lines(write, content, message):
    path = write(content)
    with pytest.raises(ValueError, match=message) as refusal:
        lines(path)
    assert str(refusal.value).startswith(f"test: {path}")
    assert "\n" not in str(refusal.value)


TABLE = "round,client,completion\n1,0,1\n1,2,0.5\n2,,\n3,1,0\n3,0,0.25\n"


def test_table(write):
    trace = RoundTable(3, 0, file=write(TABLE))
    assert trace.num_rounds == 3
    assert [trace.round(t).online.astype(int).tolist() for t in (1, 2, 3)] == [
        [1, 0, 1],
        [0, 0, 0],
        [1, 1, 0],
    ]
    assert [trace.round(t).completion.tolist() for t in (1, 3)] == [[1, 0, 0.5], [0.25, 0, 0]]
    assert trace.round(3).member.all()
    assert all(np.array_equal(a, b) for a, b in zip(trace.round(7), trace.round(1), strict=True))
    assert not RoundTable(3, 0, file=write(TABLE), repeat=False).round(4).online.any()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("1,0,1\n3,0,1\n", "line 3: round 3 is present but round 2 is missing, write a line '2,,'"),
        ("2,0,1\n", "line 2: round 2 is present but round 1 is missing"),
        ("1,0,1\n1,1,1\n1,0,0.5\n", "line 4: round 1 already has a line for client 0"),
        ("1,,\n1,0,1\n", "line 3: round 1 already has a line without a client"),
        ("1,,\n1,,\n2,0,1\n", "line 3: round 1 already has a line without a client"),
        ("1,3,1\n", "line 2: client 3 does not exist, the clients are 0 to 2"),
        ("1,0,1.5\n", "line 2: completion is 1.5, give a fraction from 0 to 1"),
        ("1,0,-0.1\n", "line 2: completion is -0.1"),
        ("1,0,\n", "line 2: give both client and completion"),
        ("0,0,1\n", "line 2: round is 0, give a whole number, 1 or more"),
        ("1.5,0,1\n", "line 2: round is 1.5"),
        ("", "nobody is online in any round"),
    ],
)
def test_invalid_tables(write, body, message):
    with pytest.raises(ValueError, match=message):
        RoundTable(3, 0, file=write("round,client,completion\n" + body))


@given(data=st.data(), num_rounds=st.integers(1, 6))
def test_table_reads_back_what_was_written(write, data, num_rounds):
    shares = st.one_of(st.none(), st.integers(0, 8).map(lambda i: i / 8))
    drawn = [[data.draw(shares) for _ in range(3)] for _ in range(num_rounds)] + [[1.0, None, None]]
    rows = [
        {"round": t, "client": k, "completion": share}
        for t, row in enumerate(drawn, start=1)
        for k, share in enumerate(row)
        if share is not None
    ]
    rows += [{"round": t} for t, row in enumerate(drawn, start=1) if row == [None] * 3]
    rows = data.draw(st.permutations(rows))
    trace = RoundTable(3, 0, file=write("".join(json.dumps(row) + "\n" for row in rows)))
    for t, row in enumerate(drawn, start=1):
        assert trace.round(t).online.tolist() == [share is not None for share in row]
        assert trace.round(t).completion.tolist() == [share or 0 for share in row]
