"""Files that would take all memory, never end, or lead to numbers that are none."""

import json
import os
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_traces_fuzz import READERS, VALID, fuzzed, phone

from traces import TRACES
from traces.files import documents

TABLES = ("log", "table", "sleep")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "unreadable", "missing"])
def test_what_is_no_file_is_refused_at_once(tmp_path, reader, kind):
    path = tmp_path / "trace.csv"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "inner.csv").mkdir(parents=True)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "unreadable":  # reading fails, not opening
        path.symlink_to("/proc/self/mem")
    with pytest.raises(ValueError, match="cannot be read: ") as refusal:
        READERS[reader](str(path))
    assert str(path) in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("reader", TABLES)
def test_a_line_that_does_not_end(write, reader):
    with pytest.raises(ValueError, match="line 1: longer than 65536 bytes"):
        READERS[reader](write(b"1" * 10**6))


@pytest.mark.filterwarnings("ignore:.*left out as torn")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "cp037"])
def test_other_encodings_are_refused(write, reader, encoding):
    with pytest.raises(ValueError, match=r"test|trace"):
        READERS[reader](write(VALID["table"].decode().replace("1", "é").encode(encoding)))


@pytest.mark.parametrize("reader", ["log", "table", "flash", "sleep"])
def test_a_byte_order_mark_is_no_content(write, reader):
    READERS[reader](write(b"\xef\xbb\xbf" + VALID[reader]))


def test_a_document_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="larger than 512 MiB"):
        documents.read_document("test", str(path))


NUMBERS = [
    "0",
    "1e1000000",
    "-1e400",
    "1" * 5000,
    "9" * 400,
    "NaN",
    "-Infinity",
    "5e-324",
    "1e308",
    "true",
    "null",
]


@pytest.mark.parametrize("number", NUMBERS)
def test_extreme_numbers_of_json(write, number):
    """A phone with the number in each place is read with finite results, or refused with its file."""
    for field in ("active", "inactive", "finish_time", "computation", "communication"):
        entry = phone([0, 7], [5, 9], computation=5, communication=50)
        text = json.dumps(
            {"2": phone([1], [8]), "1": entry | {field: [1, "?"] if field.endswith("active") else "?"}}
        )
        path = write(text.replace('"?"', number))
        check_trace("phones", path)


TIMES = st.sampled_from(
    [0.0, 5e-324, 1e-300, 1e-9, 1e-6, 0.1, 1.0, 1e9, 1e15, 1e16, 1e300, 1.7e308]
) | st.floats(0, allow_infinity=False)
RATES = TIMES | st.none()


@fuzzed
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
    """Make a trace of two clients: in its rounds all is finite, or one line refuses the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for changes in (
            {},
            {"late": True},
            {"on_interrupt": "pause"},
            {"on_interrupt": "pause", "late": True},
        ):
            try:
                trace = TRACES[name](2, 0, file=path, **options, **changes)
            except ValueError as refusal:
                assert path in str(refusal)  # noqa: PT017
                assert len(str(refusal).splitlines()) == 1  # noqa: PT017
                return
            for t in (1, 2, 1000, 10**6):
                completion = trace.round(t).completion
                assert np.isfinite(completion).all()
                assert ((completion >= 0) & (completion <= 1)).all()
                assert (trace.late(t) >= 0).all()
