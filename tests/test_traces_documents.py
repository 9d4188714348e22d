"""JSON and pickles of plain data; nothing in a pickle is executed."""

import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.files.documents import plain_pickle, read_document

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(value=plain, protocol=st.integers(0, 5))
def test_plain_pickles_are_read(value, protocol):
    # A copy without shared objects: the pickler would refer to the same list twice.
    assert plain_pickle("x", pickle.dumps(json.loads(json.dumps(value)), protocol)) == value


def test_tuples_become_lists():
    assert plain_pickle("x", pickle.dumps([(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)])) == [
        [],
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 3, 4],
    ]


class Evil:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return (print, ("pickled code was run",))


SHARED: list[object] = [1]
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "value", [Evil(), {1: [Evil()]}, print, np.float64(2), np.arange(3), {1, 2}, 1j, b"x", SHARED, ENDLESS]
)
def test_other_pickles_are_refused(value, protocol, capsys):
    content = pickle.dumps([value, value] if value is SHARED else value, protocol)
    with pytest.raises(ValueError, match=r"only plain data can be read|nor a pickle of plain data"):
        plain_pickle("x", content)
    assert capsys.readouterr().out == ""


def test_huge_numbers_are_refused():
    with pytest.raises(ValueError, match="more than 64 bits"):
        plain_pickle("x", pickle.dumps(10**5000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither JSON nor a pickle"),
        (b"\x93NUMPY", "only plain data can be read"),
        (pickle.dumps({"a": [1, 2]})[:-3], "neither JSON nor a pickle|incomplete"),
        (b'{"a": 1', "line 1: invalid JSON at character 8"),
        (b'{"a":\n NaN}', "NaN is not a finite number"),
        (b'{"a":\n "\xff"}', "line 2: not UTF-8 text"),
        (b"[" * 30 + b"]" * 30, "nested deeper than 20 levels"),
        (b"[" * 100_000, "nested deeper than 20 levels"),
        (b"\x80\x04X" + struct.pack("<I", 2**31) + b"short", "neither JSON nor a pickle"),
    ],
)
def test_invalid_documents(write, content, message):
    with pytest.raises(ValueError, match=message):
        read_document("test", write(content))
