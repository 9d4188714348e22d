"""Whatever a file contains, a reader reads it or raises a ValueError of one line."""

import json
import pickle
import warnings
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces import TRACES
from traces.files import blocks
from traces.files.lines import read_lines
from traces.recorded.device_log import read_device_log
from traces.recorded.fedscale import read_fedscale
from traces.recorded.flash import read_flash
from traces.recorded.round_table import RoundTable

fuzzed = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)


def phone(active, inactive, **changes):
    return {"active": active, "inactive": inactive, "finish_time": 1000, **changes}


def messages(*events):
    return {"guid": "x", "model": "y", "messages": "".join(f"2020-01-31 {e}\n" for e in events)}


TABLE = "round,client,completion\n1,0,1\n1,2,0.5\n2,,\n3,1,0\n3,0,0.25\n"


def reads_or_refuses(read):
    """Read; an error must be a ValueError of one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except ValueError as error:
            assert len(str(error).splitlines()) == 1, str(error)  # noqa: PT017


READERS = {
    "log": lambda path: read_device_log("test", path, 5).num_devices,
    "table": lambda path: RoundTable(5, 0, file=path).round(1),
    "fedscale": lambda path: read_fedscale("test", path),
    "flash": lambda path: read_flash("test", path),
    "sleep": lambda path: TRACES["sleep"](2, 0, file=path),
    "run": lambda path: TRACES["run"](2, 0, file=path).round(1),
}
STARTS = {
    "log": "client,start,end\n",
    "table": "round,client,completion\n",
    "fedscale": '{"1": {"finish_time": 9, "active": [',
    "flash": '{"a": {"messages": "2020-01-31 08:00:00\\twifi\\n',
    "sleep": "client,seconds\n",
    "run": '{"round": 0}\n{"round": 1, "selected": [0], "active": [0], "planned": [8], "steps": [4], ',
}


@pytest.mark.parametrize("reader", READERS)
@fuzzed
@given(
    valid=st.booleans(),
    content=st.binary() | st.text(alphabet='0123456789.,-e\n{}[]":aN \t', max_size=60).map(str.encode),
)
def test_files_that_are_valid_at_first_or_not_at_all(write, reader, valid, content):
    path = write(STARTS[reader].encode() * valid + content)
    reads_or_refuses(lambda: READERS[reader](path))


VALID = {
    "fedscale": pickle.dumps({1: phone([0, 7], [5, 9]), 2: phone([1], [3], computation=5.0)}),
    "flash": json.dumps(
        {
            "a": messages(
                "08:00:00\twifi", "08:00:10\tbattery_charged_on", "08:01:00\tscreen_lock", "08:02:00\t2G"
            )
        }
    ).encode(),
    "log": b"client,start,end,steps_per_second\n0,1,2,3\n1,2.5,3,\n0,4,9,1e-3\n",
    "table": TABLE.encode(),
    "sleep": b"client,seconds\n0,5\n1,7.5\n",
    "run": b'{"round": 1, "members": [0, 1], "available": [0, 1], "selected": [0, 1], "active": [0], '
    b'"steps": [3], "planned": [4], "failed": {"1": "late reply of round 1"}, "seconds": {"train": 2.5}, '
    b'"late": [{"client": 0, "task": 1}], "events": [{"event": "departure", "client": 1}]}\n',
}


@pytest.mark.parametrize("reader", VALID)
@fuzzed
@given(data=st.data())
def test_damaged_files(write, reader, data):
    content = bytearray(VALID[reader])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        content = content or bytearray(b"x")
    path = write(bytes(content))
    reads_or_refuses(lambda: READERS[reader](path))


# Truncated files, and files of other formats


@pytest.mark.parametrize("reader", ["log", "table", "sleep"])
def test_truncated_lines(write, reader):
    content = VALID[reader]
    for cut in range(len(content)):
        path = write(content[:cut])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with suppress(ValueError):
                READERS[reader](path)
        assert all("left out as torn" in str(w.message) for w in caught)
        assert len(caught) == (cut > 0 and content[cut - 1] != ord("\n"))


@pytest.mark.parametrize("reader", ["fedscale", "flash"])
def test_truncated_documents(write, reader):
    content = VALID[reader]
    for cut in range(len(content)):
        with pytest.raises(ValueError, match="data"):
            READERS[reader](write(content[:cut]))


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
}


@pytest.mark.filterwarnings("ignore:.*left out as torn")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("other", OTHERS)
def test_files_of_other_formats(write, reader, other):
    path = write(OTHERS[other])
    if other != reader:
        with pytest.raises(ValueError, match=f"{path}(, |: )") as refusal:
            READERS[reader](path)
        assert len(str(refusal.value).splitlines()) == 1


# Valid lines are read, invalid ones are named


numbers = st.one_of(
    st.integers(-2, 12).map(str),
    st.sampled_from(["", "nan", "inf", "1e1", "0.5", "1e999", "x", " 3 ", "1_0", "0x1"]),
)


def sessions_in(lines: list[tuple[str, str, str]]) -> list[tuple[int, float, float]] | int:
    """Read lines as documented, slowly: return the sessions, or the first invalid line."""
    read: list[tuple[int, float, float]] = []
    for number, fields in enumerate(lines, start=2):
        try:
            client, start, end = (float(field) for field in fields if "_" not in field)
        except ValueError:
            return number
        whole = client in range(3)
        if not (whole and 0 <= start < end < float("inf")):
            return number
        read.append((int(client), start, end))
    return read


@fuzzed
@given(lines=st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=6))
def test_log_against_its_definition(write, lines):
    path = write("client,start,end\n" + "".join(",".join(line) + "\n" for line in lines))
    expected = sessions_in(lines)
    if isinstance(expected, int):
        with pytest.raises(ValueError, match=f"line {expected}: "):
            read_device_log("test", path, 3)
        return
    ordered = sorted((*session, number) for number, session in enumerate(expected, start=2))
    clash = [b for a, b in pairwise(ordered) if a[0] == b[0] and b[1] < a[2]]
    if clash:
        with pytest.raises(ValueError, match=r"line [0-9]+: the session from .* overlaps"):
            read_device_log("test", path, 3)
        return
    log = read_device_log("test", path, 3)
    assert list(zip(log.start.tolist(), log.end.tolist(), strict=True)) == [row[1:3] for row in ordered]
    assert np.diff(log.first).tolist() == [sum(row[0] == k for row in ordered) for k in range(3)]


# Many lines at a time, and one by one


fields = st.text(alphabet="0123456789.-+eE", max_size=5)
plain = st.integers(0, 10**9).map(str) | st.floats(0, 1e6).map(str)
odd = st.sampled_from(
    ["", "# note", "1,2", "1,2,3,4", "1, 2,3", "1,2,3\r", "1,2,nan", "1e999,2,3", "\ufeff1,2,3"]
)
line = st.one_of(
    st.tuples(plain, plain, plain | st.just("")).map(",".join),
    st.tuples(fields, fields, fields).map(",".join),
    odd,
)


def outcome(read):
    """All that a reader yields, and its error."""
    found, message = [], ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number, values in read:
                found.append((number, [None if v is None or v != v else v for v in values]))
        except ValueError as error:
            message = str(error)
    return found, message


@fuzzed
@given(lines=st.lists(line, max_size=12), end=st.sampled_from(["\n", "", "\n\n"]), block=st.integers(1, 40))
def test_blocks_hold_the_same_as_lines(write, lines, end, block):
    path = write("a,b,c\n" + "\n".join(lines) + end)
    arguments = "test", path, ("a", "b"), ("c", "d")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        many = outcome(
            (n, v)
            for part in blocks.read_blocks(*arguments)
            for n, v in zip(part.numbers.tolist(), part.values.tolist(), strict=True)
        )
    assert many == outcome(read_lines(*arguments))


def test_a_long_file_with_a_late_error(write):
    rows = [f"{k % 5},{10 * (k // 5)},{10 * (k // 5) + 9}\n" for k in range(200_000)]
    assert read_device_log("test", write("client,start,end\n" + "".join(rows)), 5).first[-1] == 200_000
    rows[150_000] = "0,5,4\n"
    with pytest.raises(ValueError, match="line 150002: the session starts at 5 s but ends at 4 s"):
        read_device_log("test", write("client,start,end\n" + "".join(rows)), 5)
    rows[150_000] = "0;5;4\n"
    with pytest.raises(ValueError, match="line 150002: 3 values expected as in the header, found 1"):
        read_device_log("test", write("client,start,end\n" + "".join(rows)), 5)
    rows[150_000] = "0,5,6\n"  # during another session of the client
    with pytest.raises(ValueError, match="line 150002: the session from 5 s overlaps"):
        read_device_log("test", write("client,start,end\n" + "".join(rows)), 5)


def test_folders_of_logs(write, tmp_path):
    (tmp_path / "logs").mkdir()
    with pytest.raises(ValueError, match=r"logs: the folder has no \.csv or \.jsonl files"):
        read_device_log("test", str(tmp_path / "logs"), 3)
    write("client,start,end\n0,0,5\n", "logs/b.csv")
    write('{"client": 1, "start": 2, "end": 4}\n', "logs/a.jsonl")
    write("no log", "logs/notes.txt")
    assert read_device_log("test", str(tmp_path / "logs"), 3).first.tolist() == [0, 1, 2, 2]
    write("client,start,end\n# x\n0,4,7\n", "logs/c.csv")
    with pytest.raises(ValueError, match=r"logs/c\.csv, line 3: the session from 4 s overlaps"):
        read_device_log("test", str(tmp_path / "logs"), 3)
    write("client,start,end\n7,4,7\n", "logs/c.csv")
    with pytest.raises(ValueError, match=r"logs/c\.csv, line 2: client 7 does not exist"):
        read_device_log("test", str(tmp_path / "logs"), 3)
