"""Whatever a file holds: a reader reads it, or raises a ValueError of one line."""

import json
import pickle
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces import TRACES
from traces.device_log import read_device_log
from traces.fedscale import read_fedscale
from traces.flash import read_flash
from traces.table import Table

fuzzed = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def make(content: str | bytes, name: str = "data") -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def phone(active, inactive, **changes):
    return {"active": active, "inactive": inactive, "finish_time": 1000, **changes}


def messages(*events):
    return {"guid": "x", "model": "y", "messages": "".join(f"2020-01-31 {e}\n" for e in events)}


TABLE = "round,client,completion\n1,0,1\n1,2,0.5\n2,,\n3,1,0\n3,0,0.25\n"


def refuses_or_reads(read):
    """Read; a refusal must be a ValueError of one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            read()
        except ValueError as error:
            assert len(str(error).splitlines()) == 1, str(error)  # noqa: PT017


READERS = {
    "log": lambda path: read_device_log("test", path, 5).num_devices,
    "table": lambda path: Table(5, 0, file=path).round(1),
    "fedscale": lambda path: read_fedscale("test", path),
    "flash": lambda path: read_flash("test", path),
    "sleep": lambda path: TRACES["sleep"](2, 0, file=path),
}
STARTS = {
    "log": "client,start,end\n",
    "table": "round,client,completion\n",
    "fedscale": '{"1": {"finish_time": 9, "active": [',
    "flash": '{"a": {"messages": "2020-01-31 08:00:00\\twifi\\n',
    "sleep": "client,seconds\n",
}


@pytest.mark.parametrize("reader", READERS)
@fuzzed
@given(content=st.one_of(st.binary(), st.text().map(str.encode)))
def test_anything(write, reader, content):
    path = write(content)
    refuses_or_reads(lambda: READERS[reader](path))


@pytest.mark.parametrize("reader", READERS)
@fuzzed
@given(text=st.text(alphabet='0123456789.,-e\n{}[]":aN \t', max_size=60))
def test_nearly_right(write, reader, text):
    path = write(STARTS[reader] + text)
    refuses_or_reads(lambda: READERS[reader](path))


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
    refuses_or_reads(lambda: READERS[reader](path))
