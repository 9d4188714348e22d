"""Data files that are damaged, or not files, or would take all memory: one line says so, at once."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import PARTITIONS, SIZES

CSV = b"who,x,y\na,1,0\nb,2,1\na,3,1\nb,4,0\na,5,0\nb,6,1\n"


def load(task: str = "digits", **changes: Any) -> Any:
    return Federation.of(Settings(**{"task": task, "num_clients": 2, "partition": "iid", **changes})).data


def load_table(path: Path | str, options: str = "drop=who") -> Any:
    return load(f"csv:file={path},target=y,{options}")


def load_indices(path: Path | str) -> Any:
    rng = np.random.default_rng(0)
    return PARTITIONS["indices"](np.array([0, 1] * 3), SIZES["equal"](2, 6, rng), rng, file=str(path))


def refusal(path: Path | str, read: Any) -> str:
    """Return the one line that refuses a file, which it names."""
    with pytest.raises(ValueError, match=r".") as raised:
        read(path)
    text = str(raised.value)
    assert str(path) in text
    assert len(text.splitlines()) == 1
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("read", [load_table, load_indices])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, read: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "device", tmp_path / "missing"):
        refusal(path, read)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no rows below the header"),
        (CSV + b"\n" * 1_000_000 + b"1", "line 1000008: 1 values for 3 columns"),
        (b"x" * 1_000_000, "field larger than field limit"),
        (b"x," * 200_000 + b"y\n1,2\n", "line 1: two columns are named 'x'"),
        (CSV.replace(b"3", b"\0"), "NUL|not a finite number"),
        (CSV.decode().encode("utf-16"), "line 1 is not UTF-8 text; save the file as CSV in UTF-8"),
        (CSV.replace(b"3", b"1e400"), "'1e400' is not a finite number"),
    ],
    ids=range(7),
)
def test_hostile_tables(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    assert re.search(says, refusal(path, load_table))


def test_numbers_of_a_table_take_no_memory_by_their_size(tmp_path: Path, monkeypatch: Any) -> None:
    """A client or a class is one, whatever its number; categories and features are limited."""
    path = tmp_path / "data.csv"
    path.write_bytes(CSV.replace(b"a,", b"1000000000000,").replace(b",1\n", b",999999999\n"))
    assert load(f"csv:file={path},target=y,client=who", partition="").num_outputs == 2
    path.write_text("c,x,y\n" + "".join(f"v{k},{k},{k % 2}\n" for k in range(1500)))
    with pytest.raises(ValueError, match="column 'c' has 1500 different values; a category has at most 1000"):
        load(f"csv:file={path},target=y,categories=c")
    monkeypatch.setattr(sys.modules["fedtide.tasks.tables"], "MAX_NUMBERS", 1000)
    with pytest.raises(ValueError, match="1,500 numbers, more than 1,000"):
        load(f"csv:file={path},target=y,drop=c")


@given(data=st.data())
def test_damaged_tables(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(CSV)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    try:
        load_table(path, "categories=who")
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


ROWS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(ROWS)
def test_any_json_as_indices(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(content))
    try:
        assert len(load_indices(path)) == 2
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        assert str(path) in str(error)  # noqa: PT017
