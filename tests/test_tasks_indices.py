"""Partitions read from a file of indices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import PARTITIONS, SIZES

LABELS = np.array([0, 1, 0, 1, 0, 1])
WHOLE = [[4, 0], [3], [1, 2]]


def read(file: str, num_clients: int = 3, sizes: str = "equal") -> list[list[int]]:
    rng = np.random.default_rng(0)
    parts = PARTITIONS["indices"](LABELS, SIZES[sizes](num_clients, len(LABELS), rng), rng, file=file)
    return [part.tolist() for part in parts]


def test_lists_and_objects(write: Callable[..., str]) -> None:
    assert read(write(json.dumps(WHOLE))) == WHOLE
    assert read(write(json.dumps({"2": WHOLE[2], "0": WHOLE[0], "1": WHOLE[1]}))) == WHOLE


def test_a_partition_that_was_written_out_gives_the_same_data(tmp_path: Path) -> None:
    drawn = Settings(partition="classes:m=2", sizes="pareto", num_clients=7, evaluate_on="objective")
    whole = Federation.of(Settings(partition="classes:m=2", sizes="pareto", num_clients=7)).data
    file = tmp_path / "parts.json"
    file.write_text(json.dumps([whole.train_rows(client).tolist() for client in range(7)]))
    given = Settings(partition=f"indices:file={file}", num_clients=7, evaluate_on="objective")
    one, two = Federation.of(drawn).data, Federation.of(given).data
    np.testing.assert_array_equal(one.sizes, two.sizes)
    for client in np.arange(7):
        for part in ("train_set", "holdout"):
            for a, b in zip(getattr(one, part)([client]), getattr(two, part)([client]), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[0], [1]]", "2 lists for 3 clients; set --num-clients 2"),
        ('{"0": [0], "1": [1]}', "client 2 is missing"),
        ('{"0": [0], "1": [1], "2": [2], "x": []}', "the key 'x' is not a client; the keys are the clients"),
        ("[[0], [1], []]", "client 2 has no rows, but every client needs at least one"),
        ("[[0], [1], [true]]", "client 2 needs a list of whole numbers"),
        ("[[0], [1], [6]]", "client 2 has row 6, but the training examples are rows 0 to 5"),
        (f"[[0], [1], [{9**400}]]", "client 2 needs a list of whole numbers"),
        ("[[0, 1], [5], [2, 1]]", "clients 0 and 2 both have row 1; an example belongs to one client only"),
        ("[[0], [5, 3, 5], [2]]", "client 1 has twice row 5"),
        ("7", "expected a list of rows for each client"),
        ("[[0], [1],", "not as expected: Expecting value: line 1 column 11"),
        (b"\xff\xfe", "not as expected: line 1 is not UTF-8"),
        ("[" * 100_000, "not as expected: it is nested too deeply"),
    ],
)
def test_bad_files(write: Callable[..., str], content: str | bytes, message: str) -> None:
    file = write(content)
    with pytest.raises(ValueError, match=r"^partition indices: ") as refusal:
        read(file)
    assert f"{file}: {message}" in str(refusal.value)


def test_what_else_is_refused(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="leave --sizes out"):
        read(write(json.dumps(WHOLE)), sizes="pareto")
    for partition in ("indices", "indices:file=nowhere.json"):
        with pytest.raises(SystemExit):
            sim.main(["--partition", partition, "--engine", "inline"])
        assert len(capsys.readouterr().err.splitlines()) == 1


CONTENT = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(CONTENT)
def test_any_json(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "parts.json"
    path.write_text(json.dumps(content))
    try:
        assert len(read(str(path), 2)) == 2
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        assert str(path) in str(error)  # noqa: PT017
