"""`--task hf`: data sets in folders, as `save_to_disk` leaves them, made here."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sim
from fedtide.base.preprocessing import Category
from fedtide.config import Settings
from fedtide.federation import Federation
from fedtide.tasks import SquaredError, are_classes
from fedtide.tasks.texts import FIRST, Tokens

datasets = pytest.importorskip("datasets")
PIL = pytest.importorskip("PIL.Image")
N = 60
RNG = np.random.default_rng(5)
GREY = RNG.integers(256, size=(N, 9, 8), dtype=np.uint8)
WRITER = np.array([f"f{k:02}" for k in RNG.integers(7, size=N)])
NUMBER = RNG.normal(3, 2, size=N)
SMALL = ["--model=logistic", "--num-rounds=2", "--local-steps=2", "--client-gpus=0", "--engine=inline"]
SMALL += ["--no-report", "--trace=always"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for each data set."""
    base = tmp_path_factory.mktemp("hub")

    def save(name: str, columns: dict[str, Any], **types: Any) -> None:
        made = datasets.Dataset.from_dict(columns)
        for column, feature in types.items():
            made = made.cast_column(column, feature)
        made.save_to_disk(base / name)

    Image, ClassLabel, Value = datasets.Image, datasets.ClassLabel, datasets.Value
    digits, letters = np.arange(N) % 3, ClassLabel(names=["a", "b", "c", "d"])
    images = {"image": [PIL.fromarray(x) for x in GREY], "character": digits, "writer": WRITER}
    save("images", images, image=Image(), character=letters)
    colour = [PIL.fromarray(np.stack([x, x // 2, x], 2)[: 9 - k % 2]) for k, x in enumerate(GREY)]
    save("colour", {"image": colour, "label": digits}, image=Image())
    deep = [PIL.fromarray(200 * x.astype(np.uint16)) for x in GREY]
    save("deep", {"image": deep, "label": digits}, image=Image())
    mixed = [PIL.fromarray(x).convert("RGB" if k == 7 else "L") for k, x in enumerate(GREY)]
    save("mixed", {"image": mixed, "label": digits}, image=Image())
    save("repeated", {"image": mixed[7::-1] * 9, "label": np.arange(72) % 3}, image=Image())
    words = np.array(["what a film", "It was, alas, bad", "film", "a a bad film"])[np.arange(N) % 4]
    made = datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({"text": words[rows], "y": [t[-1] for t in words[rows]]})
            for split, rows in (("train", slice(40)), ("test", slice(40, N)), ("other", slice(3)))
        }
    )
    made.save_to_disk(base / "texts")
    table = {"size": NUMBER, "vector": np.stack([NUMBER, -NUMBER], 1), "flat": np.arange(N) % 2 == 0}
    table |= {"town": np.array(["x", "y", "z"])[digits], "id": WRITER, "price": 2 * NUMBER, "label": digits}
    save("table", table | {"long": [str(k) for k in range(N)]}, size=Value("float32"))
    save("missing", {"x": [1.0, None, *NUMBER[2:]], "label": [0, 1] * (N // 2)})
    save("unlabelled", {"x": NUMBER, "label": [0, -1] * (N // 2)}, label=ClassLabel(names=["a", "b"]))
    torn = [{"bytes": _png(x)[: 60 if k == 5 else None], "path": None} for k, x in enumerate(GREY)]
    save("torn", {"image": torn, "label": digits}, image=Image())
    save("empty", {"x": [], "label": []})
    save("uneven", {"x": [[1.0]] * (N - 1) + [[1.0, 2.0]], "label": [0, 1] * (N // 2)})
    many = {"x": NUMBER, "label": np.arange(N), "one": [1] * N}
    save("constant", many)
    (base / "nothing").mkdir()
    return base


@pytest.fixture
def load(folder: Path) -> Callable[..., Any]:
    def federate(spec: str, **settings: Any) -> Any:
        return Federation.of(Settings(task=f"hf:{folder}/{spec}", **{"num_clients": 5, **settings})).data

    return federate


def _png(pixels: Any) -> bytes:
    PIL.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def rows(data: Any) -> list[int]:
    """The images of GREY that the clients have, in their order."""
    x, _ = data.train_set(np.arange(len(data.sizes)))
    mean, std = data.derive.mean[0], data.derive.deviation[0]
    pixels = np.rint((x[:, 0] * std + mean) * 255).astype(np.uint8)
    return [int(np.flatnonzero((image == GREY).all((1, 2)))[0]) for image in pixels]


def test_images_of_natural_clients(load: Callable[..., Any]) -> None:
    data = load("images,image=image,label=character,client=writer")
    assert (data.input_shape, data.num_outputs, data.train[0].dtype) == ((1, 9, 8), 4, np.uint8)
    writers = []
    for k, own in enumerate(np.split(np.array(rows(data)), np.cumsum(data.sizes)[:-1])):
        (writer,) = {*WRITER[own]}
        writers.append(writer)
        np.testing.assert_array_equal(data.train_set(np.array([k]))[1], own % 3)
    assert data.client_names == tuple(map(str, sorted(writers)))
    assert len(data.test[1]) == N // 5
    x = GREY[rows(data)]
    np.testing.assert_allclose(data.derive.mean[0], x.mean() / 255, rtol=1e-6)
    np.testing.assert_allclose(data.derive.deviation[0], x.std() / 255, rtol=1e-6)
    fewer = load("images,image=image,label=character,client=writer", arrivals="1=never")
    assert fewer.sizes.tolist() == [0 if k == 1 else size for k, size in enumerate(data.sizes)]
    others = GREY[rows(fewer)]
    np.testing.assert_allclose(fewer.derive.mean[0], others.mean() / 255, rtol=1e-6)
    assert rows(load("images,image=image,label=character,client=writer", seed=1)) != rows(data)
    everybody = load("images,image=image,label=character,client=writer", num_clients=7)
    assert everybody.sizes.sum() == N - N // 5


def test_images_of_any_size_are_divided_by_a_partition(load: Callable[..., Any]) -> None:
    data = load("colour,image=image,size=6,augment=flip", partition="iid")
    assert data.input_shape == (3, 6, 6)
    assert data.augmentation.flip
    assert data.sizes.sum() == N - N // 5


def test_images_of_16_bits_keep_all_of_their_levels(load: Callable[..., Any]) -> None:
    names = ("deep,image=image,label=label", "images,image=image,label=character")
    deep, plain = (load(name, partition="iid") for name in names)
    (x, _), (expected, _) = (data.train_set(np.arange(5)) for data in (deep, plain))
    np.testing.assert_allclose(
        x, expected, rtol=2e-5, atol=2e-5
    )  # standardised, a factor makes no difference
    assert load("deep,image=image,label=label,size=5", partition="iid").input_shape == (1, 5, 5)


def test_grey_images_among_those_in_colour(load: Callable[..., Any]) -> None:
    """Whichever come first."""
    for split in ("repeated", "mixed"):
        data = load(f"{split},image=image,label=label", partition="iid")
        assert data.input_shape == (3, 9, 8)


def test_texts_with_a_test_split(load: Callable[..., Any]) -> None:
    data = load("texts,text=text,label=y,length=3,vocabulary=6", partition="iid")
    assert (data.input_shape, data.num_outputs) == ((3,), 2)  # m and d
    assert len(data.test[1]) == 20
    assert data.vocabulary == 6
    # "a" 40 times, "film" 30, then "," 20 (of the first three words: 10) and others
    np.testing.assert_array_equal(data.test[0][2], [0, 0, 2 + (data.test[0][2, 2] == 3)])
    assert data.test[0].dtype == np.int64
    assert len(load("texts,text=text,label=y,test=other", partition="iid").test[1]) == 3


def test_tokens_are_the_most_frequent_ones_of_the_training_texts() -> None:
    tokens, train = Tokens.of("words", ["b b a", "A, c!", "", "zz zz zz b"], 3), np.array([1, 1, 1, 0], bool)
    known = tokens.frequent(train, 5)  # besides padding and unknown: a, b and one of those that occur once
    assert len(known) == 5 - FIRST
    np.testing.assert_array_equal(tokens.numbered(known), [[3, 3, 2], [2, 4, 1], [0, 0, 0], [1, 1, 1]])
    tokens = Tokens.of("characters", ["ab", "ba!", "\U0001f600", ""], 2)
    known = tokens.frequent(np.ones(4, bool), 100)
    x = tokens.numbered(known)
    assert (x.tolist(), len(known), x.dtype) == ([[2, 3], [3, 2], [0, 4], [0, 0]], 3, np.int16)


def test_tables(load: Callable[..., Any]) -> None:
    data = load("table,features=size+vector+flat+town,client=id", num_clients=3)
    x, labels = data.train_set(np.arange(3))
    assert x.shape == (data.sizes.sum(), 1 + 2 + 2 + 3)
    assert len(x) < N - N // 5
    assert x.dtype == np.float32
    np.testing.assert_allclose(x[:, :3].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(x[:, :3].std(0), 1, atol=1e-5)
    np.testing.assert_allclose(x[:, 0], -x[:, 2], atol=1e-5)
    np.testing.assert_array_equal(x[:, 5:].argmax(1), labels)  # the town is the label
    np.testing.assert_array_equal(x[:, 3:5].sum(1), 1)
    assert data.preprocessing.features[3] == Category("town", ("x", "y", "z"))
    assert [*map(len, (data.preprocessing.features[1].mean, data.preprocessing.unused))] == [2, 3]
    prices = load("table,label=price,features=size,kind=regression", partition="iid")
    drawn = load(
        "table,label=price,features=size,kind=regression,client=id", num_clients=3, arrivals="1=never"
    )
    np.testing.assert_allclose(drawn.train_set(np.arange(3))[1].mean(), 0, atol=1e-5)
    assert isinstance(prices.criterion, SquaredError)
    assert prices.criterion.unit == prices.preprocessing.target.deviation
    assert not are_classes(prices.train[1])
    np.testing.assert_allclose(prices.train[0][:, 0], prices.train[1], atol=1e-5)


def test_an_index_of_pandas_is_no_feature(tmp_path: Path) -> None:
    """It is stored once rows were taken from a table, and may give the label away."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": NUMBER, "label": np.arange(N) // (N // 2)})
    made = datasets.Dataset.from_pandas(frame[frame.index != 3])
    made.save_to_disk(tmp_path / "taken")
    assert "__index_level_0__" in made.features
    with pytest.warns(UserWarning, match="column '__index_level_0__', an index of pandas, is left out"):
        data = Federation.of(Settings(task=f"hf:{tmp_path}/taken", num_clients=2)).data
    assert data.input_shape == (1,)
    named = f"hf:{tmp_path}/taken,features=x+__index_level_0__"
    assert Federation.of(Settings(task=named, num_clients=2)).data.input_shape == (2,)


@pytest.mark.parametrize(
    "task",
    [
        "images,image=image,label=character,client=writer",
        "texts,text=text,label=y",
        "table,features=size+town,label=price,kind=regression",
    ],
)
def test_a_run(task: str, folder: Path, tmp_path: Path) -> None:
    model = ["--model=lstm:hidden=4,embedding=3"] if "text=" in task else []
    arguments = [*SMALL, *model, "--num-clients=4", f"--task=hf:{folder}/{task}", f"--run-dir={tmp_path}"]
    assert sim.main([*arguments]) == 0


BAD = {
    "images,image=picture,label=character": "no column 'picture' (image); columns: image, writer",
    "images,image=image": "no column 'label' (label); columns: image, character, writer",
    "images,image=image,label=character,client=author": "no column 'author' (client)",
    "texts,text=text,label=y,split=valid": "has no split 'valid' (split); splits: train, test, other",
    "texts,text=text,label=y,test=valid": "has no split 'valid' (test)",
    "texts,text=text,label=y,split=other,test=other": "split and test are both other",
    "images,split=test,label=character": "has no split 'test' (split); splits: train",
    "nothing": "cannot be loaded: Directory",
    "../hub-that-is-not-there": "is no folder here, cannot be loaded: there is no such folder",
    "empty": "cannot be loaded",
    "images,image=image,text=writer,label=character": "set one of image, text and features",
    "images,image=writer,label=character": "has string, not images; cast it to datasets.Image()",
    "colour,image=image": "has images of 9x8 and 8x8 pixels; set size=",
    "table,text=size": "column 'size' has float32, not texts",
    "table,features=long,label=price": "'price' has 60 different",
    "missing": "column 'x', row 1 of split train: a value is missing",
    "unlabelled": "column 'label', row 1 of split train: a label is missing",
    "torn,image=image": "column 'image', row 5 of split train: the image cannot be read: OSError: ",
    "uneven": "column 'x' has lists of different lengths",
    "constant,label=one": "'one' has the same value in all rows",
    "images,label=character,features=image": "'image' has",
    "table,features=size,label=town,kind=regression": "column 'town' has string, not numbers",
    "table,features=size,label=vector,kind=regression": "column 'vector' has 2 numbers in a row",
    "images,image=image,label=writer,client=image": "not classes or names",
}


@pytest.mark.parametrize("task", BAD)
def test_what_is_wrong_is_one_line(task: str, folder: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedtide.tasks.tables.MAX_CLASSES", 50)
    divide = [] if "client=" in task else ["--partition=iid"]
    with pytest.raises(SystemExit, match="2"):
        sim.main([*SMALL, *divide, "--num-clients=4", f"--task=hf:{folder}/{task}"])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("fedtide: error: task hf: ")
    assert BAD[task] in line


def test_a_format_of_files_is_not_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's `pandas` unpickles what lies in the working directory."""

    class Hostile:
        def __reduce__(self) -> Any:
            return Path.mkdir, (tmp_path / "unpickled",)

    (tmp_path / "train.pkl").write_bytes(pickle.dumps(Hostile()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"pandas, which is no folder here, cannot .* a format of files"):
        Federation.of(Settings(task="hf:pandas,label=x")).data
    assert not (tmp_path / "unpickled").exists()


def test_too_many_clients_and_a_partition_of_natural_ones(load: Callable[..., Any]) -> None:
    natural = "images,image=image,label=character,client=writer"
    with pytest.raises(ValueError, match=r"there are 7 values of column 'writer' in split train; set"):
        load(natural, num_clients=8)
    with pytest.raises(ValueError, match="already divided among the clients"):
        load(natural, partition="iid")
    with pytest.raises(ValueError, match="leave --sizes out"):
        load(natural, sizes="pareto")


def test_without_the_extra(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match=r"datasets is not installed; pip install datasets"):
        load("table")


def test_the_name_needs_no_key() -> None:
    from fedtide.base.specs import bind
    from fedtide.tasks import PARTITIONS, TASKS

    for text in ("hf: a/b ,label=y", "hf:name=a/b,label=y", "hf:label=y,name=a/b"):
        assert bind("task", TASKS, text).options == {"name": "a/b", "label": "y"}
    with pytest.raises(ValueError, match=r"'0\.5' at character 11 is not key=value"):
        bind("partition", PARTITIONS, "dirichlet:0.5")
    with pytest.raises(ValueError, match="'b' at character 8 is not key=value"):
        bind("task", TASKS, "hf:x=1,b")


def test_clients_have_groups(tmp_path: Path) -> None:
    """Of the clients that the seed draws; the column is no feature."""
    client = np.arange(N) % 6
    columns = {
        "x": NUMBER,
        "label": np.arange(N) % 2,
        "client": client,
        "ward": [f"w{k % 2}" for k in client],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "wards")
    task = f"hf:{tmp_path / 'wards'},client=client,group=ward"
    data: Any = Federation.of(Settings(task=task, num_clients=4)).data
    assert data.client_groups == tuple(f"w{int(name) % 2}" for name in data.client_names)
    assert data.input_shape == (1,)
    with pytest.raises(ValueError, match="group=ward is a group of clients: add client=COLUMN"):
        Federation.of(Settings(task=task.replace("client=client,", ""), partition="iid", num_clients=4)).data
