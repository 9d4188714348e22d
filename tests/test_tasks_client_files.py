"""Tasks whose files assign the examples to clients: .npz files by client, and LEAF's JSON."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_docs import blocks

from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import FederatedData

RNG = np.random.default_rng(0)
SIZES = {"10": 4, "9": 7, "Zoë": 3}


def data_of(task: str, clients: int = 3, **more: Any) -> FederatedData:
    return Federation.of(Settings(task=task, num_clients=clients, **more)).data


def examples(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(count, 2, 3)), RNG.integers(0, 4, count)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three clients with .npz files, of which one has nothing to test on."""
    for split, part in (("train", 1), ("test", 2)):
        (tmp_path / split).mkdir()
        for name, count in SIZES.items():
            if part == 1 or name != "9":
                x, y = examples(count // part)
                np.savez_compressed(tmp_path / split / f"{name}.npz", x=x, y=y)
    return tmp_path


def test_clients_keep_their_names_and_their_division(folder: Path) -> None:
    data: Any = data_of(f"npz:folder={folder},shape=6")
    assert data.client_names == ("10", "9", "Zoë")
    assert data.sizes.tolist() == [4, 7, 3]
    for client, name in enumerate(data.client_names):
        with np.load(folder / "train" / f"{name}.npz") as arrays:
            x, y = data.train_set(np.array([client]))
            np.testing.assert_array_equal(x, arrays["x"].reshape(-1, 6).astype(np.float32))
            np.testing.assert_array_equal(y, arrays["y"])
    assert [len(part) for part in data.test] == [2 + 1] * 2
    assert data.num_outputs == 4


def test_numbers_are_in_their_order_and_the_seed_draws(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "Zoë.npz").rename(folder / split / "100.npz")
    data: Any = data_of(f"npz:folder={folder}")
    assert data.client_names == ("9", "10", "100")
    drawn = {data_of(f"npz:folder={folder}", 2, seed=seed).client_names for seed in range(9)}  # type: ignore[attr-defined]
    assert drawn == {("9", "10"), ("9", "100"), ("10", "100")}
    with pytest.raises(ValueError, match=r"there are 3 clients in .*; set --num-clients 3 or less"):
        data_of(f"npz:folder={folder}", 4)


def test_without_a_test_split_a_fifth_is_for_testing(folder: Path) -> None:
    data = data_of(f"npz:folder={folder / 'train'},kind=regression")
    assert (int(data.sizes.sum()), len(data.test[0])) == (11, 3)
    assert data.num_outputs == 1
    assert data.test[1].dtype == np.float32


def test_files_of_pfllib_once_converted(tmp_path: Path) -> None:
    """As its `save_file` writes them."""
    x, y = examples(5)
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        np.savez_compressed(tmp_path / split / "0.npz", data=np.array({"x": x, "y": y}))
    with pytest.raises(ValueError, match="as PFLlib's are; docs/tasks"):
        data_of(f"npz:folder={tmp_path}", 1)
    (convert,) = blocks("docs/tasks.md", "python")
    exec(convert.replace("FOLDER", str(tmp_path)), {})
    found = data_of(f"npz:folder={tmp_path}", 1).test
    np.testing.assert_array_equal(found[0], x.astype(np.float32))
    np.testing.assert_array_equal(found[1], y)


def leaf(folder: Path, **splits: dict[str, tuple[list[Any], list[Any]]]) -> Path:
    """Write files as LEAF does, a file for every user."""
    for split, users in splits.items():
        (folder / split).mkdir(parents=True)
        for number, (name, (x, y)) in enumerate(users.items()):
            content = {"users": [name], "num_samples": [len(y)], "user_data": {name: {"x": x, "y": y}}}
            (folder / split / f"all_data_{number}.json").write_text(json.dumps(content))
    return folder


def test_leaf(tmp_path: Path) -> None:
    train = {"f2": ([[1, 2], [3, 4]], [0, 2]), "f1": ([[5, 6.5]], [1])}
    leaf(tmp_path, train=train, test={"f2": ([[7, 8]], [2])})
    data: Any = data_of(f"leaf:folder={tmp_path},shape=1x2", 2)
    assert data.client_names == ("f1", "f2")
    assert data.train_set(np.array([1]))[0].tolist() == [[[1, 2]], [[3, 4]]]
    assert (data.test[0].tolist(), data.test[1].tolist(), data.num_outputs) == ([[[7, 8]]], [2], 3)


def test_inputs_to_train_and_to_test_on_are_of_one_kind(tmp_path: Path) -> None:
    """JSON writes 2 for a float of 2.0; texts of another length are refused."""
    leaf(tmp_path / "a", train={"f1": ([[5, 6.5]], [1]), "f2": ([[5, 6]], [0])}, test={"f1": ([[7, 8]], [1])})
    data: Any = data_of(f"leaf:folder={tmp_path / 'a'}", 2)
    assert data.test[0].dtype == np.float32
    leaf(tmp_path / "b", train={"f1": (["to b"], ["e"])}, test={"f1": (["to"], ["b"])})
    with pytest.raises(
        ValueError, match=r"client f1 \(test\) has inputs of type <U1 of shape \(2,\), client f1 <U1"
    ):
        data_of(f"leaf:folder={tmp_path / 'b'}", 1)


def test_texts_of_leaf(tmp_path: Path, simulate: Callable[..., Any]) -> None:
    """Their characters, and the ones that follow, are numbered in their order."""
    train = {"A_PAGE": (["to b", "o be"], ["e", " "]), "B": (["é to"], ["b"])}
    leaf(tmp_path, train=train, test={"B": (["to b"], ["e"])})
    data: Any = data_of(f"leaf:folder={tmp_path}", 2)
    assert data.vocabulary == len(set(" beoté"))
    assert data.train_set(np.array([0]))[0].tolist() == [[4, 3, 0, 1], [3, 0, 1, 2]]
    assert data.train_set(np.array([0]))[1].tolist() == [2, 0]
    changes = {"model": "lstm:hidden=4,embedding=3", "num_clients": 2, "trace": "always"}
    assert len(simulate(task=f"leaf:folder={tmp_path}", **changes).rounds) == 3


def test_classes_may_be_named_by_bytes(tmp_path: Path) -> None:
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", x=np.ones((5, 1)), y=np.array([b"v", b"u", b"v", b"w", b"u"]))
    data = data_of(f"npz:folder={tmp_path}", 2)
    labels = np.concatenate([data.train_set(np.arange(2))[1], data.test[1]])
    assert (np.bincount(labels) == [4, 4, 2]).all()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": [[1.0]]}, "1.npz: it has no array 'y'"),
        ({"x": [[1.0]], "y": [1, 2]}, "client 1 has inputs of shape (1, 1) and targets of shape (2,)"),
        ({"x": [[1.0]], "y": [0.5]}, "targets are not whole numbers from 0 on; set kind=regression"),
        ({"x": [[1.0]], "y": [-1]}, "targets are not whole numbers"),
        ({"data": np.array({"x": 1}, dtype=object)}, "1.npz: its arrays are pickled, as PFLlib's are"),
        ({"x": [[[1.0]]], "y": [0]}, "client 1 has inputs of type float64 of shape (1, 1), client 0 float64"),
        ({"x": [["a"]], "y": [0]}, "client 1 has inputs of type <U1 of shape (1,), client 0 float64"),
        ({"x": [[np.nan]], "y": [0]}, "a number is missing or infinite"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "0.npz", x=np.ones((5, 1)), y=np.arange(5))
    np.savez(tmp_path / "1.npz", **{name: np.asarray(array) for name, array in arrays.items()})
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - below
        data_of(f"npz:folder={tmp_path}", 2)
    assert says in str(raised.value)


def test_what_would_lose_examples_of_leaf_is_refused(tmp_path: Path) -> None:
    own = ([[1], [2]], [0, 1])
    other = leaf(tmp_path / "a", train={"u1": own}, test={"u2": own})
    (other / "train" / "._all_data_0.json").write_bytes(b"\x00\x05\x16\x07")  # as macOS leaves it
    with pytest.raises(ValueError, match="the examples to test on are of none of the clients"):
        data_of(f"leaf:folder={other}", 1)
    both = leaf(tmp_path / "b", train={"u1": own, "u2": own})
    shutil.copy(both / "train" / "all_data_0.json", both / "train" / "later.json")
    with pytest.raises(ValueError, match=r"later.json: user 'u1' is in a file before it, too"):
        data_of(f"leaf:folder={both}", 2)


def test_leaf_without_users(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there are no users in .*train/"):
        data_of(f"leaf:folder={tmp_path}", 1)
    (leaf(tmp_path, train={"a": ([[1], [1, 2]], [0, 1])}) / "train" / "more.json").write_text(
        '{"users": [1]}'
    )
    with pytest.raises(ValueError, match=r"more.json: it lacks users, or the user_data of one"):
        data_of(f"leaf:folder={tmp_path}", 1)
    (tmp_path / "train" / "more.json").unlink()
    with pytest.raises(ValueError, match="user a: its inputs, or its targets, are of different lengths"):
        data_of(f"leaf:folder={tmp_path}", 1)
