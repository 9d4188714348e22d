"""Boards with a table of their own: its rows become what the server's are, or a line says what is not so."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from flwr.app import Context, RecordDict
from flwr.client import ClientApp
from grid_nodes import Federation as Nodes

import fedtide
from clients.app import client_fn
from clients.device.local_data import DataSpec, LocalData, read
from clients.torch_client import local_clients
from fedtide.base.preprocessing import Preprocessing
from fedtide.config import Settings
from fedtide.devices.flower_run import run_on_grid
from fedtide.federation import Federation
from fedtide.tasks import PartitionedData
from fedtide.tasks.data import preprocessing_of
from fedtide.tasks.data import test_rows as rows_to_test

TOWNS, HEATING = ["Oslo", "Rome", "Lima, north"], ["1", "2", "02", "10"]
OPTIONS = {
    "classification": "target=dear,client=town,categories=heating,drop=id+price",
    "regression": "target=price,kind=regression,client=town,categories=heating+dear,drop=id",
}


def homes(count: int = 60) -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    size = rng.normal(70, 30, count).round(3)
    frame = pandas.DataFrame({"id": range(count), "town": rng.choice(TOWNS, count), "size": size})
    frame["heating"] = rng.choice(HEATING, count)
    frame["rooms"] = rng.integers(1, 9, count)
    frame["same"] = 7.1
    frame["dear"] = np.where(size + rng.normal(0, 20, count) > 70, "yes", "no")
    frame["price"] = (3e3 * size + rng.normal(0, 1e4, count)).round(2)
    return frame


def task(folder: Path, options: str) -> str:
    homes().to_csv(folder / "homes.csv", index=False)
    return f"csv:file={folder / 'homes.csv'},{options}"


def served(folder: Path, options: str) -> PartitionedData:
    data = Federation.of(Settings(task=task(folder, options), num_clients=3)).data
    assert isinstance(data, PartitionedData)
    return data


def own(folder: Path, frame: pandas.DataFrame, done: str, *spec: str, **csv: Any) -> LocalData:
    frame.to_csv(folder / "own.csv", **{"index": False, **csv})
    return read(DataSpec(str(folder / "own.csv"), *spec), done)


@pytest.mark.parametrize("more", ["", ",standardise=false"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_rows_are_those_of_the_server_to_the_bit(tmp_path: Path, kind: str, more: str) -> None:
    """In another order of columns, with semicolons and decimal commas, and with an index of pandas."""
    data, frame = served(tmp_path, OPTIONS[kind] + more), homes()
    test, done = rows_to_test(len(frame)), preprocessing_of(data).to_json()
    shuffled = frame[[*np.random.default_rng(1).permutation(frame.columns)]]
    ways: list[dict[str, Any]] = [{"index": True}, {"sep": ";", "decimal": ","}, {"sep": "\t"}]
    for way in ways:
        if "index" in way:
            with pytest.warns(UserWarning, match="column 1 has no name, and is left out"):
                found = own(tmp_path, shuffled, done, **way)
        else:
            found = own(tmp_path, shuffled.drop(columns="id"), done, **way)
        for mine, train, held in zip((found.x, found.y), data.train, data.test, strict=True):
            assert mine.dtype == train.dtype
            np.testing.assert_array_equal(mine[~test], train)
            np.testing.assert_array_equal(mine[test], held)
    assert (np.float32(7.1) in found.x) == bool(more)
    assert found.unit == (getattr(data.criterion, "unit", None))
    copy = str(tmp_path / "copy.npz")
    for _ in range(2):
        again = own(tmp_path, frame, done, "", "", copy)
        np.testing.assert_array_equal(again.x, found.x)
        assert (again.y.tolist(), again.unit) == (found.y.tolist(), found.unit)


@pytest.mark.parametrize(
    ("changes", "spec", "says"),
    [
        ({"heating": None}, (), "line 3, column 'heating': a value is missing; add it, or remove the row"),
        ({"heating": "3"}, (), "line 3, column 'heating': '3' is not one of 1+2+10"),
        ({"dear": "perhaps"}, (), "line 3, column 'dear': 'perhaps' is not one of no+yes"),
        ({"size": "large"}, (), "line 3, column 'size': 'large' is not a finite number"),
        ({"size": None}, (), "line 3, column 'size': a value is missing"),
        (
            {"garage": 1},
            (),
            "column 'garage' is not in the run's table, which has dear, heating, size, rooms",
        ),
        (
            {"rooms": ...},
            (),
            "there is no column 'rooms'; the run's table has dear, heating, size, rooms, same",
        ),
        ({"dear": ...}, (), "there is no column 'dear'; the run's table has"),
        ({}, ("town",), "target is 'town', and the run predicts 'dear'; leave it out"),
        ({}, ("", "yes+no"), "classes yes+no are not those of the run's table; leave them out"),
    ],
)
def test_what_the_server_does_not_know_is_one_line(
    tmp_path: Path, changes: dict[str, Any], spec: tuple[str, ...], says: str
) -> None:
    done = preprocessing_of(served(tmp_path, OPTIONS["classification"])).to_json()
    frame = homes().astype(object)
    for column, value in changes.items():
        if value is ...:
            frame = frame.drop(columns=column)
        else:
            frame[column] = frame.get(column, 0)
            frame.loc[1, column] = value
    with pytest.raises(ValueError, match=f"^data {tmp_path}/own.csv: {re.escape(says)}.*$"):
        own(tmp_path, frame, done, *spec)


def test_numbers_are_predicted_as_the_task_has_them(tmp_path: Path) -> None:
    """In files that are not of the run's table."""
    done = Preprocessing("regression", 2.5).to_json()
    rows = pandas.DataFrame({"a": [1.5, 2], "b": [0, 1], "y": [100, -7.25]})
    found = own(tmp_path, rows, done)
    assert (found.x.tolist(), found.y.tolist(), found.unit) == ([[1.5, 0], [2, 1]], [100, -7.25], 2.5)
    np.savez(tmp_path / "own.npz", x=found.x, y=np.array([100, 3]))
    again = read(DataSpec(str(tmp_path / "own.npz")), done)
    assert (again.y.dtype, again.y.tolist(), again.unit) == (np.float32, [100, 3], 2.5)
    again.check(2, 1)
    with pytest.raises(ValueError, match="one number to predict where the model of the run has 3 outputs"):
        again.check(2, 3)
    with pytest.raises(ValueError, match="classes where the model of the run predicts one number"):
        read(DataSpec(str(tmp_path / "own.npz"))).check(2, 1)
    for spec, kind, says in (
        (
            ("own.csv", "", "cat+dog"),
            "regression",
            "own.csv: it has classes, and the run's task predicts numbers",
        ),
        (("",), "regression", "it has classes, and the run's task predicts numbers"),
        (("own.csv",), "BinaryCrossEntropy", "which the run's criterion, BinaryCrossEntropy, does not take"),
    ):
        path, *more = spec
        with pytest.raises(ValueError, match=says):
            read(DataSpec(str(tmp_path / path), *more), Preprocessing(kind).to_json())
    with pytest.raises(ValueError, match="preprocessing: another version has written it"):
        read(DataSpec(str(tmp_path / "own.csv")), "[]")


TEXTS = [
    "Good, really good!",
    "bad",
    "",
    "It was  bad\nand 'long', too long",
    "GOOD? \u0130stanbul; ?",
    "so; so",
]


@pytest.mark.parametrize("tokens", ["words", "characters"])
def test_texts_are_those_of_the_server_to_the_bit(tmp_path: Path, tokens: str) -> None:
    """In any order of columns; a token that the server does not know is one, and arrays are its tokens."""
    datasets = pytest.importorskip("datasets")
    rng = np.random.default_rng(2)
    frame = pandas.DataFrame({"text": rng.choice(TEXTS, 40), "id": range(40)})
    frame["label"] = np.where(rng.random(40) < 0.5, "no", "yes")
    datasets.Dataset.from_pandas(frame).save_to_disk(tmp_path / "hub")
    spec = f"hf:{tmp_path / 'hub'},text=text,tokens={tokens},length=5,vocabulary=12"
    settings = Settings(task=spec, model="lstm:hidden=3,embedding=2", partition="iid", num_clients=2)
    federation = Federation.of(settings)
    data, test = federation.data, rows_to_test(len(frame))
    assert isinstance(data, PartitionedData)
    done, (numbers, classes) = preprocessing_of(data).to_json(), data.train_set(np.arange(2))
    rows = pandas.concat([frame[~test].iloc[data.order], frame[test]])
    found = own(tmp_path, rows[["label", "id", "text"]], done, "", "", str(tmp_path / "copy.npz"))
    again = own(tmp_path, rows[["label", "id", "text"]], done, "", "", str(tmp_path / "copy.npz"))
    for mine in (found, again):
        assert (mine.x.dtype, mine.vocabulary) == (np.int64, 12)
        np.testing.assert_array_equal(mine.x, np.concatenate([numbers, data.test[0]]))
        np.testing.assert_array_equal(mine.y, np.concatenate([classes, data.test[1]]))
    new = own(tmp_path, pandas.DataFrame({"text": ["\u4f60"], "label": ["no"]}), done)
    assert new.x.tolist() == [[0, 0, 0, 0, 1]]
    shapes = tuple(tuple(p.shape) for p in federation.model_builder()().parameters())
    clients = local_clients(settings, DataSpec(str(tmp_path / "own.csv")), 0, "cpu", shapes, done)
    assert clients.data.test[0].tolist() == new.x.tolist()
    for x, says in ((found.x, ""), (found.x + 9, "numbers from 0 to 11"), (found.x / 2, "type float64")):
        np.savez(tmp_path / "own.npz", x=x, y=found.y)
        with pytest.raises(ValueError, match=says) if says else nullcontext():
            np.testing.assert_array_equal(read(DataSpec(str(tmp_path / "own.npz")), done).x, found.x)
    with pytest.raises(ValueError, match="the run's task reads texts; give a CSV file"):
        read(DataSpec(str(tmp_path)), done)


def test_texts_that_a_csv_file_does_not_keep_are_refused(tmp_path: Path) -> None:
    """Characters at the ends of which there are spaces."""
    datasets = pytest.importorskip("datasets")
    frame = pandas.DataFrame({"text": [" a", "b"] * 5, "label": ["no", "yes"] * 5})
    datasets.Dataset.from_pandas(frame).save_to_disk(tmp_path / "hub")
    spec = f"hf:{tmp_path / 'hub'},text=text,tokens=characters"
    data = Federation.of(Settings(task=spec, partition="iid", num_clients=2)).data
    with pytest.raises(ValueError, match="line 2, column 'text': 'a' is not a finite number"):
        own(tmp_path, frame, preprocessing_of(data).to_json())


def board(node: dict[str, Any], run: dict[str, Any]) -> ClientApp:
    def client(context: Context) -> Any:
        return client_fn(Context(context.run_id, context.node_id, node, RecordDict(), run))

    client(Context(0, 0, {}, RecordDict(), {}))  # makes the model, as the server will, with one generator
    return ClientApp(client_fn=client)


@pytest.mark.parametrize("kind", OPTIONS)
def test_boards_train_as_clients_of_the_same_run_inline(
    federation: Nodes, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With PyTorch and without, each on its own file; a third has none and its part of the run's table."""
    settings: dict[str, Any] = {"task": task(tmp_path, OPTIONS[kind]), "model": "mlp:hidden=5"}
    settings |= {"num_clients": 3, "num_rounds": 3, "strategy": "scaffold", "learning_rate": 0.05, "seed": 4}
    settings |= {"batch_size": 4, "local_steps": 5, "cohort": "loop", "report": "none"}
    inline = fedtide.run(
        **settings, trace="always", run_dir=tmp_path / "inline", progress=False, engine="inline"
    )
    frame = homes()
    train = frame[~rows_to_test(len(frame))]
    run = {key.replace("_", "-"): value for key, value in settings.items()}
    for client, town in enumerate(sorted(TOWNS)):
        rows = train[train["town"] == town].drop(columns=["town", "id"])
        node = {"client-id": client, "numpy": client == 1}
        if client < 2:
            file = tmp_path / f"{client}.csv"
            rows[rows.columns[::-1]].to_csv(file, sep=";", decimal=",", index=False)
            node |= {"data": str(file)}
        federation.node(client, board(node, run))
    run_on_grid(federation.grid, Settings(**settings, run_dir=str(tmp_path / "boards")))
    (folder,) = (tmp_path / "boards").glob("*/")
    boards = fedtide.load(folder)
    assert isinstance(boards, fedtide.Run)
    records = boards.with_records().records
    assert [record.get("failed", {}) for record in records] == [{}] * 4
    for mine, theirs in zip(boards.weights, inline.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    line = "trained on the run's data set, not on data of their own (--data): client 2"
    assert [record.get("notes", []) for record in boards.with_records().records] == [[], [line], [], []]
    assert f"round 1: {line}" in capsys.readouterr().out
    (known, also) = ((path / "preprocessing.json").read_text() for path in (folder, inline.path))
    assert known == also
    assert json.loads(known)["kind"] == kind
