"""Files of recordings: whatever one contains, it is read, or one line says what is wrong and where."""

import json
import os
import pickle
import re
import warnings
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import TRACES
from traces.files import documents, tables
from traces.recorded.device_log import read_device_log
from traces.recorded.failure_archive import read_failure_archive
from traces.recorded.fedscale import read_fedscale
from traces.recorded.flash import read_flash
from traces.recorded.flhetbench import read_states
from traces.recorded.round_table import RoundTable


def phone(active, inactive, **changes):
    return {"active": active, "inactive": inactive, "finish_time": 1000, **changes}


def messages(*events):
    return {"a": {"guid": "x", "messages": "".join(f"2020-01-31 {event}\n" for event in events)}}


def timers(*sessions, **changes):
    return {"7": {"isSuccess": True, "trace_start": 10, "trace_end": 60, "ready_time": sessions} | changes}


READERS = {
    "numbers": lambda path: [*tables.read_numbers("test", path, ("a", "b"), ("c",))],
    "log": lambda path: read_device_log("test", path, 3),
    "fleet": lambda path: read_device_log("test", path, 3),
    "table": lambda path: RoundTable(3, 0, file=path).round(1),
    "fedscale": lambda path: read_fedscale("test", path),
    "flash": lambda path: read_flash("test", path),
    "flhetbench": lambda path: read_states("test", path, ["7"]),
    "fta": lambda path: read_failure_archive("test", path),
    "sleep": lambda path: TRACES["sleep"](2, 0, file=path),
    "run": lambda path: TRACES["run"](2, 0, file=path).round(1),
}
EVENTS = ("00\twifi", "10\tbattery_charged_on", "20\tscreen_lock", "30\t2G")
VALID = {
    "fedscale": pickle.dumps({1: phone([0, 7], [5, 9]), 2: phone([1], [3], computation=5.0)}),
    "flash": json.dumps(messages(*(f"08:00:{event}" for event in EVENTS))).encode(),
    "flhetbench": json.dumps(timers([12, 20], [50, 58])).encode(),
    "fta": b"# event component node platform name type start stop\n"
    b"1\t1\t5\t1\ta b\t1\t0\t9.5\tNULL\n2\t1\t5\t1\ta b\t0\t9.5\t12\t0\n3\t1\t6\t1\tc\t1\t4\t8\n",
    "log": b"client,start,end,steps_per_second\n0,1,2,3\n1,2.5,3,\n0,4,9,1e-3\n",
    "fleet": b"device,start,end\na,2026-03-01T08:00Z,2026-03-01 09:00\n"
    b'"b, c",2026-03-01 08:00,2026-03-02 08:00\n',
    "table": b"round,client,completion\n1,0,1\n1,2,0.5\n2,,\n3,1,0\n3,0,0.25\n",
    "sleep": b"client,seconds\n0,5\n1,7.5\n",
    "run": b'{"round": 1, "members": [0, 1], "available": [0, 1], "selected": [0, 1], "active": [0], '
    b'"steps": [3], "planned": [4], "failed": {"1": "late reply of round 1"}, "seconds": {"train": 2.5}, '
    b'"late": [{"client": 0, "task": 1}], "events": [{"event": "departure", "client": 1}]}\n',
}
OTHERS = {
    **VALID,
    "gzip": b"\x1f\x8b\x08\x00" + bytes(range(40)),
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "zip": b"PK\x03\x04\x14\0\0\0\x08\0",
    "npz of numbers": b"\x93NUMPY\x01\0v\0{'descr': '<f8'}\n",
    "semicolons": b"client;start;end\n0;1;2\n",
    "tabs": b"client\tstart\tend\n0\t1\t2\n",
    "mixed": b"client,start,end\n0,1,2\n1;2;3\n",
    "decimal commas": b"client,start,end\n0,1,5,2,5\n",
    "no header": b"0,1,2\n1,2,3\n",
    "list": b"[[0, 1, 2]]\n",
    "html": b"<!DOCTYPE html>\n<title>404</title>\n",
    **{code: VALID["table"].decode().replace("1", "é").encode(code) for code in ("utf-16", "latin-1")},
}
LOGS = ("log", "fleet")
FORMATS = [reader for reader in READERS if reader in VALID]


def refused(path, read):
    """Whether reading raises a ValueError of one line that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read(path)
        except ValueError as error:
            assert path in str(error)  # noqa: PT017
            assert len(str(error).splitlines()) == 1, str(error)  # noqa: PT017
            return True
    return False


CLIENTS, DEVICES, TABLE = "client,start,end\n", "device,start,end\n", "round,client,completion\n"
SPEEDS = "client,start,end,steps_per_second,up_bytes_per_second\n"
HOUR = "2026-03-01T08:00,2026-03-01T09:00"
REFUSED = {
    "numbers": [
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
    "log": [
        (CLIENTS + "0,0,10\n3,0,10\n", "line 3: client 3 does not exist, the clients are 0 to 2"),
        (CLIENTS + "-1,0,10\n", "line 2: client is -1, give a whole number, 0 or more"),
        (CLIENTS + "1e300,0,10\n", "line 2: client is 1e"),
        (CLIENTS + "pi,0,5\n", "line 2: 'pi' is not a finite number, give the client's number"),
        ("end,start,client\n5,0,7\n", "line 2: client 7 does not exist, the clients are 0 to 2"),
        (CLIENTS + "0,5,\n1,5,\n", "no session has an end after its start, give at least one"),
        (CLIENTS + "0,5,5\n1,9,9\n", "no session has an end after its start, give at least one"),
        (CLIENTS + "0,1772352000000,\n", "line 2: 1772352000000 s is too late, give seconds, not milli"),
        (CLIENTS + "0,2026-03-01T08:00Z,9999-12-31T23:59Z\n", "line 2: 9999-12-31T23:59:00Z is too late"),
        (CLIENTS + f"0,{HOUR}\n0,9,10\n", "line 3: the times are seconds, but timestamps before"),
        (CLIENTS, "no sessions found"),
        *(
            (SPEEDS + f"0,0,10,{rates}\n", f"line 2: {name} is .* give a positive number")
            for name, both in (("steps_per_second", "{},5"), ("up_bytes_per_second", "5,{}"))
            for rates in (both.format(0), both.format(-1))
        ),
    ],
    "fleet": [
        (
            "device,begin,end\n",
            "line 1: the header is 'device,begin,end', expected the columns device or client,",
        ),
        ("device,start,device_id,end\n", "line 1: there are 2 columns device, leave one"),
        (DEVICES + ",0,5\n", "line 2: device is missing, give its name"),
        (DEVICES + "a,,5\n", "line 2: start is missing, give seconds or a time such as"),
        (DEVICES + "a,0,today\n", "line 2: 'today' is not a finite number, give seconds or a time"),
        (DEVICES + "a,0,2026-03-01T08:00\n", "line 2: the times are timestamps, but seconds before"),
        (DEVICES + "a,-5,5\n", "line 2: the session starts at -5 s, give times of 0 s or later"),
        ("device,client,start,end\na,0,1,2\n", "line 2: give a device or a client, not both"),
        (DEVICES + "a,5,1\nb,0,x\n", "line 2: the session starts at 5 s but ends at 1 s"),
        (DEVICES + "a,0,1\nb,0,1\nc,0,1\nd,0,1\n", "4 devices for 3 clients, set --num-clients 4"),
        (
            DEVICES + "a,2026-03-01T09:00,2026-03-01T08:00\n",
            "line 2: the session starts at 2026-03-01T09:00:00Z but ends at 2026-03-01T08:00:00Z,",
        ),
        ('{"device": ["a"], "start": 0, "end": 5}\n', "line 1: device is "),
        ('{"device": "a", "start": 0, "device_id": "b"}\n', "line 1: there are 2 columns device"),
    ],
    "table": [
        (TABLE + "1,0,1\n3,0,1\n", "line 3: round 3 is present but round 2 is missing, write a line '2,,'"),
        (TABLE + "2,0,1\n", "line 2: round 2 is present but round 1 is missing"),
        (TABLE + "1,0,1\n1,1,1\n1,0,0.5\n", "line 4: round 1 already has a line for client 0"),
        (TABLE + "1,,\n1,0,1\n", "line 3: round 1 already has a line without a client"),
        (TABLE + "1,,\n1,,\n2,0,1\n", "line 3: round 1 already has a line without a client"),
        (TABLE + "1,3,1\n", "line 2: client 3 does not exist, the clients are 0 to 2"),
        (TABLE + "1,0,1.5\n", "line 2: completion is 1.5, give a fraction from 0 to 1"),
        (TABLE + "1,0,-0.1\n", "line 2: completion is -0.1"),
        (TABLE + "1,0,\n", "line 2: give both client and completion"),
        (TABLE + "0,0,1\n", "line 2: round is 0, give a whole number, 1 or more"),
        (TABLE + "1.5,0,1\n", "line 2: round is 1.5"),
        (TABLE, "nobody is online in any round"),
    ],
    "fedscale": [
        ({1: phone([0], [5, 7])}, "phone '1': active and inactive must be lists of the same length"),
        ({1: {"finish_time": 9}}, "phone '1': active and inactive must be lists"),
        ({1: phone("0", "5")}, "phone '1': active and inactive must be lists"),
        ({1: phone([5], [3])}, "phone '1': the session starts at 5 s but ends at 3 s"),
        ({1: phone([-5], [3])}, "phone '1': the session starts at -5 s"),
        ({1: phone([0], [1001])}, "phone '1': a session ends at 1001 s, after finish_time 1000"),
        ({1: phone([0], ["5"])}, "phone '1': inactive is '5', give a number"),
        ({1: phone([True], [5])}, "phone '1': active is 'True', give a number"),
        ({1: phone([0], [5], finish_time=None)}, "phone '1': finish_time is 'None', give a number"),
        ({1: phone([0], [5], computation=0)}, "phone '1': computation is 0, give a positive number"),
        ({1: phone([0], [5], communication=-1)}, "phone '1': communication is -1"),
        ({1: phone([], [], finish_time=0)}, "phone '1': finish_time is 0"),
        ({1: [0, 5]}, "phone '1': not a dict, expected a phone of FedScale's availability data"),
        ([5], "phone '1': not a dict"),
        ({"clients": 5}, "not a dict of phones"),
        ({}, "no phone is ever available"),
        ({1: phone([], [])}, "no phone is ever available"),
        (pickle.dumps({1: phone([float("nan")], [5])}), "phone '1': active is NaN, give a number"),
    ],
    "flash": [
        ([], "not a dict of phones"),
        ({"a": {}}, "phone 'a': no messages"),
        (messages("08:00:00 wifi"), "phone 'a', message 1: '2020-01-31 08:00:00 wifi' is not a time, a tab"),
        (messages("08:00:00\twifi", "25:00:00\twifi"), "phone 'a', message 2: .* 25:00:00 is not a valid"),
        (messages("08:00:00\tdance"), "phone 'a', message 1: unknown event 'dance'; known: "),
        (messages("08:00:00\twifi"), "no phone is ever locked, charging and on Wi-Fi"),
    ],
    "sleep": [
        ("client,seconds\n0,5\n", "client 1 has no posts"),
        ("client,seconds\n0,5\n2,5\n", "line 3: client 2 does not exist, the clients are 0 to 1"),
        ("client,seconds\n0.5,5\n", "line 2: client is 0.5, give a whole number, 0 or more"),
        ("client|seconds\n0|5\n", "line 1: the header is"),
    ],
    "flhetbench": [
        ([5], "not a dict of phones"),
        ({}, "phone '7': no ready_time"),
        (timers(), "none of the phones is ever online"),
        (timers([12, 12]), "none of the phones is ever online"),
        (timers([12]), "phone '7': ready_time has '\\[12\\]', give pairs"),
        (timers([12, "20"]), "phone '7': ready_time is '20', give a number"),
        (timers([20, 12]), "phone '7': the session starts at 20 s but ends at 12 s"),
        (timers([5, 12]), "phone '7': a session from 5 to 12 s is outside of its recording"),
        (timers([12, 20], trace_end=None), "phone '7': trace_end is 'None', give a number"),
        (timers([10, 10.5], trace_end=10.5), "phone '7': trace_start is 10, less than a second before"),
    ],
    "fta": [
        ("1 1 5 1 a 1 0\n", "line 1: 7 columns, expected those of an event_trace.tab"),
        ("#\n1 1 5 1 a up 0 5\n", "line 2: 'up' is not a finite number"),
        ("1 1 5 1 a 1 0 NULL\n", "line 1: 'NULL' is not a finite number"),
        ("1 1 5 1 a 1 9 5\n", "line 1: the session starts at 9 s but ends at 5 s"),
        (
            "1 1 5 1 a 1 0 5\n2 2 5 1 a 1 0 5\n",
            "line 2: node 5 has components 1 and 2, leave",
        ),
        ("1 1 5 1 a 0 0 5\n", "no event of type 1"),
        ("# nothing\n", "no event of type 1"),
    ],
}


@pytest.mark.parametrize(
    ("reader", "content", "says"), [(reader, *row) for reader, rows in REFUSED.items() for row in rows]
)
def test_one_line_says_what_is_wrong_and_where(write, reader, content, says):
    path = write(content if isinstance(content, str | bytes) else json.dumps(content), "file.csv")
    with pytest.raises(ValueError, match=rf"{re.escape(path)}(, |: )({says})") as refusal:
        READERS[reader](path)
    assert str(refusal.value).startswith("trace " if reader in ("table", "sleep") else "test: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("reader", FORMATS)
@given(
    data=st.data(),
    rest=st.binary() | st.text(alphabet='0123456789.,-e\n{}[]":aN \t', max_size=60).map(str.encode),
)
def test_damaged_files(write, reader, data, rest):
    """A valid file, of which bytes are changed, or the end, or all."""
    content = bytearray(VALID[reader])
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        content = content or bytearray(b"x")
    refused(write(bytes(content[: data.draw(st.integers(0, len(content)))]) + rest), READERS[reader])


@pytest.mark.parametrize("reader", FORMATS)
def test_files_of_other_formats(write, reader):
    for other, content in OTHERS.items():
        same = other == reader or (reader in LOGS and other in (*LOGS, "semicolons"))
        assert refused(write(content), READERS[reader]) != same, other


@pytest.mark.parametrize("reader", FORMATS)
def test_what_is_not_a_file_is_refused_at_once(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder" / "inner.csv").mkdir(parents=True)
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "unreadable").symlink_to("/proc/self/mem")  # reading fails, not opening
    for kind in ("pipe", "folder", "device", "unreadable", "missing"):
        assert refused(str(tmp_path / kind), READERS[reader]), kind


@pytest.mark.parametrize("reader", LOGS)
def test_truncated_tables(write, reader):
    content = VALID[reader]
    for cut in range(len(content)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with suppress(ValueError):
                READERS[reader](write(content[:cut]))
        assert all("left out as torn" in str(w.message) for w in caught)
        assert len(caught) == (cut > 0 and content[cut - 1] != ord("\n"))
    with pytest.raises(ValueError, match="line 1: longer than 65536 bytes"):
        READERS[reader](write(b"1" * 10**6))


@pytest.mark.parametrize("reader", ["log", "flash"])
def test_a_byte_order_mark_is_skipped(write, reader):
    READERS[reader](write(b"\xef\xbb\xbf" + VALID[reader]))


def test_a_document_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 512 MiB"):
        documents.read_document("test", str(path))


@pytest.mark.parametrize(
    "number",
    ["0", "1e1000000", "-1e400", "1" * 5000, "NaN", "-Infinity", "5e-324", "1e308", "true", "null"],
)
def test_extreme_numbers_of_json(write, number):
    """A phone with the number in each place is read with finite results, or refused with its file."""
    for field in ("active", "inactive", "finish_time", "computation", "communication"):
        entry = phone([0, 7], [5, 9], computation=5, communication=50)
        entry[field] = [1, "?"] if field.endswith("active") else "?"
        text = json.dumps({"2": phone([1], [8]), "1": entry})
        check_trace("phones", write(text.replace('"?"', number)))


TIMES = st.sampled_from(
    [0.0, 5e-324, 1e-300, 1e-9, 1e-6, 0.1, 1.0, 1e9, 1e15, 1e16, 1e300, 1.7e308]
) | st.floats(0, allow_infinity=False)
RATES = TIMES | st.none()


@given(
    sessions=st.lists(st.tuples(st.integers(0, 1), TIMES, TIMES, RATES, RATES), min_size=1, max_size=4),
    ordered=st.booleans(),
)
def test_extreme_sessions_give_completions_or_an_error(write, sessions, ordered):
    """Never NaN, whatever the numbers are."""
    rows = [(k, min(a, b), max(a, b), *r) if ordered else (k, a, b, *r) for k, a, b, *r in sessions]
    text = "".join(",".join("" if v is None else repr(v) for v in row) + "\n" for row in rows)
    header = "client,start,end,steps_per_second,up_bytes_per_second\n"
    check_trace("recorded", write(header + text), upload_bytes=1000.0)


def check_trace(name, path, **options):
    """Make a trace of two clients, unless its file is refused: in its rounds all numbers are finite."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for clock in ({}, {"late": True}, {"on_interrupt": "pause", "late": True}):
            made = []
            if refused(path, lambda file: made.append(TRACES[name](2, 0, file=file, **options, **clock))):  # noqa: B023
                return
            for t in (1, 2, 1000, 10**6):
                completion = made[0].round(t).completion
                assert ((completion >= 0) & (completion <= 1)).all()  # False for NaN
                assert (made[0].delay(t) >= 0).all()


fields = st.text(alphabet="0123456789.-+eE", max_size=5)
plain = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(str)
ODD = "|# note|1,2|1,2,3,4|1, 2,3|1, ,3|1,2, |1 2,3,4|1,2,3\r|1,2,nan|1e999,2,3|2,,1"
odd = st.sampled_from(ODD.split("|"))
line = st.tuples(plain, plain, plain | st.just("")).map(",".join) | odd
line |= st.tuples(fields, fields, fields).map(",".join)


def outcome(path):
    """All that is read, and the error."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number, values in tables.read_numbers("test", path, ("a", "b"), ("c", "d")):
                found.append((number, [None if np.isnan(v) else v for v in values]))
        except ValueError as error:
            return found, str(error)
    return found, ""


@given(lines=st.lists(line, max_size=12), end=st.sampled_from(["\n", "", "\n\n"]), block=st.integers(1, 40))
def test_blocks_hold_the_same_as_lines(write, lines, end, block):
    path = write("c,a,b\n" + "\n".join(lines) + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "BLOCK_BYTES", block)
        many = outcome(path)
        patch.setattr(tables, "_parse_numbers", lambda *_: None)
        assert many == outcome(path)


def test_a_long_file_with_a_late_error(write):
    rows = [f"{k % 5},{10 * (k // 5)},{10 * (k // 5) + 9}\n" for k in range(200_000)]
    assert read_device_log("test", write("client,start,end\n" + "".join(rows)), 5).first[-1] == 200_000
    for wrong, message in (
        ("0,5,4", "the session starts at 5 s but ends at 4 s"),
        ("0;5;4", "3 values expected as in the header, found 1"),
    ):
        rows[150_000] = wrong + "\n"
        with pytest.raises(ValueError, match=f"line 150002: {message}"):
            read_device_log("test", write("client,start,end\n" + "".join(rows)), 5)
