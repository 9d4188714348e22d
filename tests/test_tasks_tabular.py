"""CSV files: what becomes a feature, whose example it is, and what is refused, by line and column."""

import csv
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.device.local_data import DataSpec, read
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import FederatedData, SquaredError
from fedtide.tasks.data import test_rows as rows_to_test

CSV = b"who,x,y\na,1,0\nb,2,1\na,3,1\nb,4,0\na,5,0\nb,6,1\n"
MANY = "x,y\n" + "".join(f"{k},{k / 7}\n" for k in range(2000))
ROWS = """id,city,size,floor,price
a,Rome,10,1,100
b,Oslo,20,1,250
c,Rome,30,2,300
d,Lima,40,2,410
e,Oslo,50,3,480
f,Rome,60,3,590
g,Lima,70,4,730
h,Oslo,80,4,800
i,Rome,90,5,880
j,Lima,95,5,940
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(options: str, text: str | bytes = ROWS, **settings: Any) -> FederatedData:
        path = tmp_path / "homes.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        task = f"csv:file={path},{options}"
        return Federation.of(
            Settings(**{"task": task, "num_clients": 2, "partition": "iid", **settings})
        ).data

    return load


def test_regression(load: Any) -> None:
    data = load("target=price,kind=regression,categories=city,drop=id")
    assert (data.input_shape, data.num_outputs, len(data.train[1]), len(data.test[1])) == ((5,), 1, 8, 2)
    x, y = data.train
    assert x[:, :3].sum(axis=1).tolist() == [1] * 8  # three cities
    np.testing.assert_allclose(x[:, 3:].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x[:, 3:].std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-6)
    prices = {100, 250, 300, 410, 480, 590, 730, 800, 880, 940}
    assert isinstance(data.criterion, SquaredError)
    shown = np.concatenate([y, data.test[1]]) * data.criterion.unit
    shown += min(prices) - shown.min()
    np.testing.assert_allclose(sorted(shown), sorted(prices), rtol=1e-4)


def test_clients_are_named_in_a_column(load: Any) -> None:
    data = load("target=floor,client=city,drop=id", num_clients=3, partition="")
    lines = [line.split(",") for line in ROWS.splitlines()[1:]]
    assert data.num_outputs == 5
    assert data.sizes.sum() == 8
    for k, city in enumerate(["Lima", "Oslo", "Rome"]):
        _, floors = data.train_set(np.array([k]))
        own = [int(line[3]) - 1 for line in lines if line[1] == city]
        assert all(floors.tolist().count(f) <= own.count(f) for f in floors.tolist())
    with pytest.raises(ValueError, match="leave --sizes out"):
        load("target=floor,client=city,drop=id", num_clients=3, partition="", sizes="pareto")


def test_the_test_set_does_not_depend_on_the_seed(load: Any) -> None:
    first, second = (load("target=city,drop=id", seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(first.test[0], second.test[0])
    assert (first.order != second.order).any()


@pytest.mark.parametrize(
    ("options", "text", "says"),
    [
        ("target=prize", ROWS, "there is no column 'prize' (target); columns: id, city, size, floor, price"),
        ("target=price,client=town", ROWS, "there is no column 'town' (client)"),
        ("target=price", ROWS, "line 2, column 'id': 'a' is not a finite number; if 'id' is a category"),
        ("target=price", ROWS, "name it in categories=; drop= leaves it out"),
        ("target=city,kind=regression,drop=id", ROWS, "line 2, column 'city': 'Rome' is not a finite number"),
        ("target=price,drop=id,categories=city", ROWS.replace("20,1", "NA,1"), "'size': a value is missing"),
        ("target=price,drop=id,categories=city", ROWS.replace("20,1", "inf,1"), "not a finite number"),
        ("target=price", ROWS.replace("c,Rome,30", "c,Rome"), "line 4: 4 values for 5 columns"),
        ("target=y", "y\n1\n2\n", "there is no column but the target and the client"),
        ("target=y", "x,y\n1,2\n2,2\n", "column 'y' has the same value in all rows"),
        ("target=y", "x,y\n", "there are no rows below the header"),
        ("target=y", 'x,y\n"1,2\n', "homes.csv: line 2: unexpected end of data"),
        ("target=y", 'x,y,z\n1,"two\nlines",2\n\n1,a,1_000\n', "line 5, column 'z': '1_000' is not a finite"),
        ("target=y", "x;y\n1,5;a\n1.500;b\n", "line 3, column 'x': '1.500': other decimals are marked by"),
        ("target=y", "x,y\n1,5,a\n", "line 2: 3 values for 2 columns"),
        ("target=y", "x,y\n1,ä\n".encode("latin-1"), "line 2 is not UTF-8 text; save the file as CSV in"),
        ("target=y", "x,y\n1,a\n".encode("utf-16"), "line 1 is not UTF-8 text; save the file as CSV in"),
        ("target=price,client=city,drop=id", ROWS, "of 3 clients; set num-clients to 3"),
        ("target=y", MANY, "2000 different values; if it has"),
        ("target=y", b"", "no rows below the header"),
        ("target=y", CSV + b"\n" * 1_000_000 + b"1", "line 1000008: 1 values for 3 columns"),
        ("target=y,drop=who", b"sep=,\n" + CSV.replace(b"3", b"?"), "line 5, column 'x': a value is missing"),
        ("target=x", CSV.replace(b",1,", b",1.5,"), "numbers such as 1.5; set kind=regression"),
        ("target=x", b"x;y\n1,5;2\n2;3\n", "numbers such as 1.5; set kind=regression"),
        ("target=y", b"x" * 1_000_000, "field larger than field limit"),
        ("target=y", b"x," * 200_000 + b"y\n1,2\n", "line 1: two columns are named 'x'"),
        ("target=y,drop=who", CSV.replace(b"3", b"\0"), "is not a finite number"),
        ("target=y,drop=who", CSV.replace(b"3", b"1e400"), "'1e400' is not a finite number"),
        (
            "target=y,drop=who",
            CSV.replace(b"3", b"1e300"),
            "column 'x' has numbers as large as 1e+300, whose",
        ),
        ("target=y,client=who", CSV.replace(b"b,6", b"#N/A,6"), "line 7, column 'who': a value is missing"),
        ("target=y,drop=who", CSV.replace(b"6,1", b"6,#DIV/0!"), "line 7, column 'y': a value is missing"),
    ],
)
def test_errors_say_where(load: Any, options: str, text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        load(options, text, partition="" if "client=" in options else "iid")
    assert "homes.csv: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("setting", [("task", "csv:target=y,file="), ("partition", "indices:file=")])
def test_what_is_not_a_file_is_refused_at_once(tmp_path: Path, make: Any, setting: tuple[str, str]) -> None:
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=r"data: [^\n]+$"):
        Federation.of(Settings(**{setting[0]: f"{setting[1]}{tmp_path}/data"})).data


@given(data=st.data())
def test_damaged_tables(load: Any, data: st.DataObject) -> None:
    content = bytearray(CSV)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        load("target=y,categories=who", bytes(content))
    except ValueError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017


def test_numbers_of_a_table_take_no_memory_by_their_size(load: Any, monkeypatch: Any) -> None:
    """A client or a class is one, whatever its number; categories and features are limited."""
    large = CSV.replace(b"a,", b"1000000000000,").replace(b",1\n", b",999999999\n")
    assert load("target=y,client=who", large, partition="").num_outputs == 2
    many = "c,x,y\n" + "".join(f"v{k},{k},{k % 2}\n" for k in range(1500))
    with pytest.raises(ValueError, match="column 'c' has 1500 different values; a category has at most 1000"):
        load("target=y,categories=c", many)
    monkeypatch.setattr("fedtide.tasks.tables.MAX_NUMBERS", 1000)
    with pytest.raises(ValueError, match="1,500 numbers, more than 1,000"):
        load("target=y,drop=c", many)


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda x: round(x, 3))
TEXTS = st.sampled_from(['a, "b"', "ü; c", "two\nlines"])
FRAMES = st.lists(st.tuples(NUMBERS, TEXTS, st.booleans()), min_size=10, max_size=30)


@given(
    FRAMES.filter(lambda rows: len({y for *_, y in rows}) == 2),
    st.sampled_from([",.", ";,", ";.", "\t."]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["", "\n\n", "{s}{s}\n", "{s}{s}\n{s}{s}"]),
    st.booleans(),
    st.sampled_from(["", "sep={s}\r\n", "\nSEP={s}\n"]),
)
def test_what_pandas_and_spreadsheets_write(
    load: Any,
    tmp_path: Path,
    rows: Any,
    marks: str,
    end: str,
    quoting: Any,
    more: str,
    index: bool,
    above: str,
) -> None:
    """Semicolons and decimal commas, a byte order mark, an index without a name, rows that were emptied.

    A board that has the same file gets the same rows.
    """
    frame = pandas.DataFrame(rows, columns=["x", "town", "y"])
    sep, decimal = marks
    text = frame.to_csv(sep=sep, decimal=decimal, lineterminator=end, quoting=quoting, index=index)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = load("target=y,categories=town", f"\ufeff{above.format(s=sep)}{text}{more.format(s=sep)}")
    with warnings.catch_warnings(action="ignore"):
        board = read(DataSpec(str(tmp_path / "homes.csv")), found.preprocessing.to_json())
    says = [str(warning.message).rpartition(": ")[2] for warning in caught]
    assert says == ["column 1 has no name, and is left out"] * index
    expected = load("target=y,categories=town", frame.to_csv(index=False))
    for ours, theirs in zip((*found.train, *found.test), (*expected.train, *expected.test), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(found.train[0]) + len(found.test[0]) == len(rows)
    train = ~rows_to_test(len(rows))
    np.testing.assert_array_equal(board.x[train], found.train[0])
    np.testing.assert_array_equal(board.y[train], found.train[1])


def test_an_index_that_pandas_has_named_is_no_feature(load: Any, tmp_path: Path) -> None:
    """It is in files that were written, read, and written again. `drop=` may still name it."""
    frame = pandas.DataFrame({"x": range(20), "y": [0, 1] * 10})
    again = pandas.read_csv(io.StringIO(frame.to_csv())).to_csv(index=False)
    assert again.startswith("Unnamed: 0,x,y")
    with pytest.warns(UserWarning, match="column 'Unnamed: 0', an index of pandas, is left out"):
        found = load("target=y", again)
    assert found.input_shape == (1,)
    assert found.preprocessing.unused == ("Unnamed: 0",)
    with warnings.catch_warnings(action="error"):
        load("target=y,drop=Unnamed: 0", again)


@pytest.mark.parametrize("value", [0.1, 23.7, 1 / 3, 1013.25, 1e15 + 0.3])
def test_a_column_that_never_changes_becomes_0(load: Any, value: float) -> None:
    """The deviation of a hundred times 0.1 is 1e-17: dividing by it makes anything else 1e15."""
    train = ~rows_to_test(100)
    column = np.where(train, value, 2 * value)
    found = load("target=y", "x,y\n" + "".join(f"{x!r},{k % 2}\n" for k, x in enumerate(column.tolist())))
    assert not found.train[0].any()
    np.testing.assert_allclose(found.test[0], value, rtol=1e-6)


def test_spaces_after_commas_may_stand_before_quotes(load: Any) -> None:
    rows = [(x, "x, y" if x % 2 else "z") for x in range(10)]
    plain = load("target=y", "x,y\n" + "".join(f'{x},"{y}"\n' for x, y in rows))
    spaced = load("target=y", "x, y\n" + "".join(f'{x}, "{y}"\n' for x, y in rows))
    for ours, theirs in zip((*spaced.train, *spaced.test), (*plain.train, *plain.test), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert spaced.num_outputs == 2


def test_numbers_of_the_same_value_are_one_class_one_category_and_one_client(load: Any) -> None:
    rows = [f"{who},{who},{x},{who}\n" for who in ("2", "02", "2.0", "10") for x in range(5)]
    data = load("target=y,client=who,categories=kind", "who,kind,x,y\n" + "".join(rows), partition="")
    assert (data.num_outputs, data.input_shape, data.client_names) == (2, (3,), ("2", "10"))
    assert data.sizes.sum() == 16


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.csv: No such file"):
        Federation.of(Settings(task="csv:file=nowhere.csv,target=y")).data
    assert Federation.of(Settings(task="csv:file=nowhere.csv,target=y")).source.default_model == "logistic"
