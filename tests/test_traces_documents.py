"""JSON and pickles of plain data; nothing in a pickle is executed."""

import contextlib
import json
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.base.errors import SettingsError
from traces.files.documents import read_document

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
def test_plain_pickles_are_read(write, value, protocol):
    # A copy without shared objects: the pickler would refer to the same list twice.
    content = pickle.dumps(json.loads(json.dumps(value)), protocol)
    assert read_document("test", write(content)) == value


@given(value=st.floats(allow_nan=False), protocol=st.integers(3, 5))
def test_float64_of_numpy_is_a_number(write, value, protocol):
    content = {1: np.float64(value), 2: {"a": np.float64(value), "b": [np.float64(0.5)] * 2}}
    found = read_document("test", write(pickle.dumps(content, protocol)))
    assert found == content
    assert {type(found[1]), *map(type, found[2]["b"])} == {float}


def test_memory_is_bounded_by_the_size_of_the_file(write):
    """A memo of four thousand million items is not allocated for its last one."""
    assert read_document("test", write(b"\x80\x02}r\xff\xff\xff\xff.")) == {}


@given(value=plain, protocol=st.integers(0, 5), data=st.data())
def test_damaged_pickles_are_plain_data_or_refused(write, value, protocol, data):
    content = bytearray(pickle.dumps([value, {"a": np.float64(0.5)}], protocol))
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(SettingsError):
        repr(read_document("test", write(bytes(content))))


class Evil:
    """An object whose unpickling runs code."""

    def __reduce__(self):
        return (os.mkdir, ("pickled-code-was-run",))


MKDIR = b"cos\nmkdir\n"
ARGUMENT = b"(X\x14\x00\x00\x00pickled-code-was-runt"
SHARED: list[object] = [1]
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
BOMB: list[object] = [1]
for _ in range(19):
    BOMB = [BOMB] * 10

HOSTILE = {
    **{f"object {p}": pickle.dumps({1: [Evil()]}, p) for p in range(6)},
    "reduce": MKDIR + ARGUMENT + b"R.",
    "inst": ARGUMENT[:-1] + b"ios\nmkdir\n.",
    "obj": b"(" + MKDIR + ARGUMENT[1:-1] + b"o.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + ARGUMENT + b"R.",
    "newobj": b"\x80\x02" + MKDIR + ARGUMENT + b"\x81.",
    "newobj ex": b"\x80\x04" + MKDIR + ARGUMENT + b"}\x92.",
    "only a name": MKDIR + b".",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"Pmine\n.",
    "binary persistent": b"I1\nQ.",
    "state": b"]}X\x01\x00\x00\x00aNsb.",
    "call of data": b"X\x01\x00\x00\x00a)R.",
    "buffer": b"\x80\x05\x97.",
    "bytes": pickle.dumps(b"x", 4),
    "set": pickle.dumps({1, 2}, 4),
    "complex": pickle.dumps(1j),
    "NumPy": pickle.dumps(np.arange(3)),
    "NumPy integer": pickle.dumps(np.int64(1)),
    "NumPy float32": pickle.dumps(np.float32(1)),
    "NumPy function": pickle.dumps([np.float64(1)]).replace(b"scalar", b"choice"),
    "NumPy type": pickle.dumps(np.dtype("f8")),
    "long integer": pickle.dumps(1 << 1000),
    "shared": pickle.dumps([SHARED, SHARED]),
    "endless": pickle.dumps(ENDLESS),
    "ten to the 19th": pickle.dumps(BOMB),
    "deep": b"]" * 1000 + b"a" * 999 + b".",
    "empty": b"",
    "NumPy file": b"\x93NUMPY",
    "torn": pickle.dumps({"a": [1, 2]})[:-3],
    "long text": b"\x80\x04X" + struct.pack("<I", 2**31) + b"short",
    "torn JSON": b'{"a": 1',
    "not UTF-8": b'{"a":\n "\xff"}',
    "deep JSON": b"[" * 30 + b"]" * 30,
    "very deep JSON": b"[" * 100_000,
}
SAYS = {
    "shared": "in several places",
    "endless": "in several places",
    "ten to the 19th": "in several places",
    "deep": "deeper than 20 levels",
    "torn JSON": "line 1 column 8",
    "not UTF-8": "can't decode byte 0xff",
    "deep JSON": "deeper than 20 levels",
    "very deep JSON": "nested too deeply",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_all_else_is_refused_and_nothing_is_executed(write, kind, tmp_path, monkeypatch):
    path = write(HOSTILE[kind])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=SAYS.get(kind, "pickle of plain data|only plain data")) as refusal:
        read_document("test", path)
    assert path in str(refusal.value)
    assert len(str(refusal.value)) < 300 + len(path)
    assert not (tmp_path / "pickled-code-was-run").exists()
