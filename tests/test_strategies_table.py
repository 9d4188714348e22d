"""One vector for each client: in memory, in a file, and when it moves from one to the other."""

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import Rounds, collected, stored
from flwr.common import ndarrays_to_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from fedtide.base.spill import folder_of_large_files
from strategies import Layout, Roster
from strategies.core.replies import Replies
from strategies.core.state import Rows
from strategies.memory.table import ClientTable, SummedTable, TableOptions

M = 5
LAYOUT = Layout.of([np.zeros((2, 2)), np.zeros(1)])
ROW = M * 8 / 2**30  # one row of float64, in GiB


def table(rows_in_memory: float = 1e6, kind: Any = ClientTable, **options: Any) -> Any:
    return kind(LAYOUT, TableOptions(table_memory=rows_in_memory * ROW, **options))


def row(client: int, version: int) -> np.ndarray:
    return np.random.default_rng([client, version]).normal(size=M)


def indices(clients: Any) -> np.ndarray:
    return np.array(sorted(clients), np.intp)


CHANGES = st.lists(
    st.tuples(st.just("write"), st.sets(st.integers(0, 9), max_size=4))
    | st.tuples(st.just("drop"), st.integers(0, 11)),
    max_size=12,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(changes=CHANGES, rows_in_memory=st.sampled_from([0.0, 3.0, 1e6]))
def test_table_is_a_dictionary_of_vectors(changes: list[Any], rows_in_memory: float) -> None:
    ours, expected = table(rows_in_memory), {}
    for version, (change, who) in enumerate(changes):
        if change == "write":
            expected |= {client: row(client, version) for client in who}
            ours.write(indices(who), np.array([expected[c] for c in sorted(who)]).reshape(-1, M))
        else:
            np.testing.assert_array_equal(ours.drop(who), expected.pop(who, np.zeros(M)))
        assert len(ours) == len(expected)
        assert sorted(ours.clients.tolist()) == sorted(expected)
        assert [client in ours for client in range(12)] == [client in expected for client in range(12)]
        wanted = [expected.get(client, np.zeros(M)) for client in range(12)]
        np.testing.assert_array_equal(ours.read(np.arange(12)), wanted)
        for client, vector in zip(ours.clients.tolist(), ours.rows, strict=True):
            np.testing.assert_array_equal(vector, expected[client])
    again = table(1.0)
    again.load_state_dict(stored(ours.state_dict()))
    np.testing.assert_array_equal(again.read(np.arange(12)), ours.read(np.arange(12)))


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [
        (np.float32, "auto", np.float32),
        (np.float64, "auto", np.float64),
        (np.float16, "auto", np.float32),
        (np.float32, "float64", np.float64),
        (np.float64, "float32", np.float32),
    ],
)
def test_type_of_the_numbers(dtype: Any, asked: str, expected: Any) -> None:
    layout = Layout.of([np.zeros(3, dtype)])
    for memory in (0.0, 1.0):
        ours = ClientTable(layout, TableOptions(table_dtype=asked, table_memory=memory))
        ours.write(indices([1]), np.full((1, 3), 0.1))
        assert ours.read(indices([0, 1])).dtype == expected
        np.testing.assert_array_equal(ours.read(indices([1])), np.full((1, 3), 0.1, expected))


def test_what_was_read_stays_as_it_was() -> None:
    for rows_in_memory in (0.0, 10.0):
        ours = table(rows_in_memory)
        ours.write(indices([3]), row(3, 0)[None])
        before = ours.read(indices([3]))
        ours.write(indices([3]), row(3, 1)[None])
        np.testing.assert_array_equal(before[0], row(3, 0))


def test_unknown_clients_cost_nothing() -> None:
    """A client of index a million, alone in the table, has one row."""
    ours = table(2.0)
    ours.write(indices([1_000_000]), row(0, 0)[None])
    assert ours.rows.shape == (1, M)
    assert not isinstance(ours.rows, np.memmap)
    np.testing.assert_array_equal(ours.read(indices([999_999])), np.zeros((1, M)))


def test_file_is_in_the_folder_and_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Any] = []
    real = tempfile.TemporaryFile

    def spy(**options: Any) -> Any:
        folders.append(options["dir"])
        return real(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", spy)
    folder = tmp_path / "run" / "tables"
    ours = table(1.0, table_folder=str(folder))
    ours.write(indices([0]), row(0, 0)[None])
    assert folders == []
    ours.write(indices([1]), row(1, 0)[None])
    assert folders == [str(folder)]
    assert isinstance(ours.rows, np.memmap)
    assert not ours.rows.flags.writeable
    np.testing.assert_array_equal(ours.rows, [row(0, 0), row(1, 0)])
    del ours
    gc.collect()
    assert os.listdir(folder) == []
    table(0.0).write(indices([0]), row(0, 0)[None])
    assert folders[1:] == [folder_of_large_files()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no full disk")
def test_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = table(0.0, table_folder=str(tmp_path))
    ours.write(indices([0]), row(0, 0)[None])
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(ours._file, "_file", full)
        with pytest.raises(OSError, match=r"No space left .* free space or set table-folder") as caught:
            ours.write(indices([0]), row(0, 1)[None])
    assert caught.value.filename == str(tmp_path)


def some_replies(clients: list[int], version: int) -> Replies:
    return collected({client: row(client, version) for client in clients}, np.zeros(M))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    rounds=st.lists(
        st.tuples(st.sets(st.integers(0, 7), min_size=1), st.none() | st.integers(0, 7)), max_size=10
    ),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_sum_of_the_table(rounds: list[Any], dtype: str) -> None:
    """The running sum is that of the stored rows, also where storing them rounds."""
    ours = table(3.0, SummedTable, table_dtype=dtype)
    for version, (who, leaves) in enumerate(rounds):
        clients = sorted(who)
        factors = np.linspace(-2, 3, len(clients))
        ours.replace(some_replies(clients, version), factors)
        expected = factors[:, None] * np.array([row(client, version) for client in clients])
        np.testing.assert_array_equal(ours.read(indices(clients)), expected.astype(dtype))
        if leaves is not None:
            ours.drop(leaves)
        np.testing.assert_allclose(ours.total, ours.rows.sum(axis=0, dtype=np.float64), atol=1e-12)
    for client in range(8):
        ours.drop(client)
    np.testing.assert_array_equal(ours.total, np.zeros(M))


def test_the_sum_stays_that_of_the_rows() -> None:
    """What is rounded as it is stored does not add up: 2,000 rounds later the sum is as exact as at first."""
    ours = table(3.0, SummedTable, table_dtype="float32")
    for version in range(2000):
        ours.replace(some_replies(list(range(10)), version), np.ones(10))
    np.testing.assert_allclose(ours.total, ours.rows.sum(axis=0, dtype=np.float64), atol=1e-11)


def test_state_of_another_width_is_refused() -> None:
    ours = table()
    rows = Rows(indices([0]), indices([1]), np.zeros((1, 3)))
    with pytest.raises(ValueError, match="a table with 3 numbers for each client where 5 are expected"):
        ours.load_state_dict({"rows": rows, "changes": 1})


# Methods with a table

LARGE = 200_000  # weights: several blocks of columns in memory, one in a file


def weights(name: str, **options: Any) -> np.ndarray:
    """Play some rounds of random updates; the weights after each, shape (T, M)."""
    rng = np.random.default_rng(1)
    start = ndarrays_to_parameters([rng.standard_normal(LARGE)])
    rounds = Rounds(strategies.make(name, start, Roster(np.arange(1, 7)), local_steps=3, **options))
    seen = []
    for t in range(1, 6):
        online = sorted(rng.choice(6, 4, replace=False).tolist())
        deltas = {client: rng.standard_normal(LARGE) for client in online}
        steps = {client: int(rng.integers(1, 4)) for client in online}
        seen.append(rounds.play(deltas, departed=[0] if t == 4 else [], steps=steps))
    return np.array(seen)


@pytest.mark.parametrize("name", ["mifa", "fedlaavg", "mimic", "scaffold", "fedgate", "vrl-sgd"])
def test_a_file_changes_nothing(name: str) -> None:
    in_memory = weights(name)
    assert np.abs(np.diff(in_memory, axis=0)).max(axis=1).min() > 0
    np.testing.assert_allclose(weights(name, table_memory=0.0), in_memory, rtol=1e-12, atol=1e-13)
