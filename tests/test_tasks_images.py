"""The image data sets, from small files in their formats; and random changes of images."""

import hashlib
import os
import pickle
import struct
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtide.tasks import SIZES, TASKS, Augmentation, PartitionedData, images
from fedtide.tasks.partition import iid

DATA_DIR = Path(os.environ.get("FEDTIDE_DATA_DIR", "none"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address can be reached."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # which remembers the proxies
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", "http://127.0.0.1:9")


def load(task: str, folder: Path, **options: Any) -> PartitionedData:
    source = TASKS[task](data_dir=str(folder), **options)
    data = source.federate(2, iid, SIZES["equal"], 0.0, 0)
    assert isinstance(data, PartitionedData)
    return data


def refusal(task: str, folder: Path) -> str:
    with pytest.raises(ValueError, match=f"^task {task}: cannot read the .* or download them") as raised:
        load(task, folder)
    text = str(raised.value)
    assert str(folder) in text
    assert "set --data-dir" in text
    assert len(text.splitlines()) == 1
    return text


def write_pickle(path: Path, content: dict[str, Any]) -> list[str]:
    """Return the name and the checksum, as torchvision notes them."""
    path.write_bytes(pickle.dumps(content, protocol=2))
    return [path.name, hashlib.md5(path.read_bytes()).hexdigest()]


@pytest.mark.parametrize(("name", "key"), [("CIFAR10", "labels"), ("CIFAR100", "fine_labels")])
@pytest.mark.usefixtures("offline")
def test_cifar(name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of one colour, their number; one byte more and they are refused, without being unpickled."""
    from torchvision import datasets  # slow to import

    source = getattr(datasets, name)
    folder = tmp_path / source.base_folder
    folder.mkdir()
    pixels = np.repeat(np.arange(3, dtype=np.uint8), 3072).reshape(3, 3072)
    for files in ("train_list", "test_list"):
        known = [
            write_pickle(folder / file, {"data": pixels, key: [0, 1, 2]})
            for file, _ in getattr(source, files)
        ]
        monkeypatch.setattr(source, files, known)
    meta = write_pickle(folder / source.meta["filename"], {source.meta["key"]: []})
    monkeypatch.setattr(source, "meta", source.meta | {"md5": meta[1]})
    data = load(name.lower(), tmp_path, normalize=False)
    assert (data.input_shape, data.num_outputs) == ((3, 32, 32), int(name[5:]))
    for x, y in (data.train, data.test):
        np.testing.assert_allclose(x[:, 2, 5, 7] * 255, y, rtol=1e-6)
    assert load(name.lower(), tmp_path).train[0].mean() < 0
    with (folder / known[0][0]).open("ab") as file:
        file.write(b"x")
    assert "cs.toronto.edu" in refusal(name.lower(), tmp_path)


@pytest.mark.parametrize("task", ["mnist", "fashion-mnist", "emnist", "svhn", "shakespeare", "sentiment140"])
@pytest.mark.usefixtures("offline")
def test_what_cannot_be_downloaded_says_what_to_do(task: str, tmp_path: Path, capsys: Any) -> None:
    assert "refused" in refusal(task, tmp_path) or "mnist" in task  # MNIST tries several mirrors
    assert capsys.readouterr().out == ""


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("byclass", 0, 62)])
def test_emnist_stands_upright_and_counts_from_0(
    split: str, first: int, classes: int, tmp_path: Path
) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(256, size=(20, 28, 28))
    for part in ("train", "test"):
        write_idx(raw / f"emnist-{split}-{part}-images-idx3-ubyte", images)
        write_idx(raw / f"emnist-{split}-{part}-labels-idx1-ubyte", np.arange(20) % 10 + first)
    data = load("emnist", tmp_path, split=split, normalize=False)
    np.testing.assert_allclose(data.train[0][:, 0] * 255, images.swapaxes(1, 2), rtol=1e-5)
    assert data.train[1].tolist() == [k % 10 for k in range(20)]
    assert data.num_outputs == classes
    x, _ = load("emnist", tmp_path, split=split).train
    assert [x.mean(), x.std()] == pytest.approx([0, 1], abs=1e-5)


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    x, y = np.random.default_rng(0).integers(256, size=(32, 32, 3, 6)), np.array([[10, 1, 2, 3, 4, 9]]).T
    known = {}
    for part in ("train", "test"):
        path = tmp_path / f"{part}_32x32.mat"
        savemat(path, {"X": x.astype(np.uint8), "y": y})
        known[part] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    from torchvision import datasets

    monkeypatch.setattr(datasets.SVHN, "split_list", known)
    data = load("svhn", tmp_path, normalize=False, augment="flip")
    assert data.train[1].tolist() == [0, 1, 2, 3, 4, 9]
    np.testing.assert_allclose(data.train[0][3] * 255, x[..., 3].transpose(2, 0, 1), rtol=1e-5)
    assert data.augmentation == Augmentation(crop=False, flip=True, black=(-0.0, -0.0, -0.0))


DAMAGED = {
    "text": b"<html>404</html>",
    "an unknown type": struct.pack(">4i", 0x703, 1, 28, 28) + bytes(784),
    "too many images": struct.pack(">4i", 0x803, 2**31 - 1, 2**31 - 1, 28) + bytes(784),
    "torn": struct.pack(">4i", 0x803, 2, 28, 28) + bytes(1000),
    "too few images": struct.pack(">4i", 0x803, 1, 28, 28) + bytes(784),
    "other images": struct.pack(">4i", 0x803, 3, 7, 7) + bytes(147),
}


def test_damaged_images_are_refused(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        write_idx(raw / f"{split}-images-idx3-ubyte", np.zeros((3, 28, 28)))
        write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(3))
    assert len(load("mnist", tmp_path).test[1]) == 3
    for content in DAMAGED.values():
        (raw / "t10k-images-idx3-ubyte").write_bytes(content)
        assert "unpack its four files" in refusal("mnist", tmp_path)


@pytest.mark.parametrize(
    ("task", "folder", "sizes"),
    [
        ("mnist", "MNIST", (60_000, 10_000)),
        ("fashion-mnist", "FashionMNIST", (60_000, 10_000)),
        ("cifar10", "cifar-10-batches-py", (50_000, 10_000)),
    ],
)
def test_the_whole_data_sets_are_standardised(task: str, folder: str, sizes: Any, capsys: Any) -> None:
    if not (DATA_DIR / folder).is_dir():
        pytest.skip("FEDTIDE_DATA_DIR does not name a directory with these images")
    data = load(task, DATA_DIR)
    assert (len(data.train[1]), len(data.test[1])) == sizes
    x, y = data.train
    assert np.unique(y).tolist() == list(range(10))
    np.testing.assert_allclose(x.mean((0, 2, 3), np.float64), 0, atol=1e-3)
    np.testing.assert_allclose(x.std((0, 2, 3), np.float64), 1, atol=1e-3)
    assert capsys.readouterr().out == ""


def test_crops_and_flips_are_windows_of_the_padded_image() -> None:
    changes = Augmentation(crop=True, flip=True, black=(7.0, 8.0))
    images = torch.arange(2 * 3 * 5.0).view(1, 2, 3, 5).expand(300, -1, -1, -1) - 100
    drawn = changes.draw(300, np.random.default_rng(0))
    np.testing.assert_array_equal(drawn[:9], changes.draw(9, np.random.default_rng(0)))
    found = {array.numpy().tobytes() for array in changes.apply(images, torch.from_numpy(drawn))}
    padded = torch.stack([torch.full((11, 13), black) for black in changes.black])
    padded[:, 4:7, 4:9] = images[0]
    windows = {
        (window.flip(-1) if mirrored else window).contiguous().numpy().tobytes()
        for top in range(9)
        for left in range(9)
        for mirrored in (False, True)
        for window in [padded[:, top : top + 3, left : left + 5]]
    }
    assert found <= windows
    assert len(found) > 50
    none = Augmentation(crop=False, flip=False, black=(0.0, 0.0))
    assert torch.equal(none.apply(images, torch.from_numpy(drawn)), images)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a board with NumPy alone."""
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match="the digits are scikit-learn's, which is not installed here"):
        images.load_digits()
