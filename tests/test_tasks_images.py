"""The image data sets, from small files in their formats; and random changes of images."""

import hashlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexfl.tasks import SIZES, TASKS, Augmentation, PartitionedData
from flexfl.tasks.cifar import CIFAR10, CIFAR100, read_binary, read_pickled
from flexfl.tasks.partition import iid

fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def load(task: str, folder: Path, **options: Any) -> PartitionedData:
    source = TASKS[task](data_dir=str(folder), **options)
    data = source.federate(2, iid, SIZES["equal"], 0.0, 0)
    assert isinstance(data, PartitionedData)
    return data


def cifar_records(count: int, num_labels: int, first: int = 0) -> bytes:
    """Images of one colour, their number; of several labels, the last is their number."""
    labels = bytes([9] * (num_labels - 1))
    return b"".join(labels + bytes([k]) + bytes([k]) * 3072 for k in range(first, first + count))


def pickled(count: int, key: str, first: int = 0, protocol: int = 2) -> bytes:
    """What Python 2 wrote: a dictionary with an array, and a list of labels."""
    pixels = b"".join(bytes([k]) * 3072 for k in range(first, first + count))
    labels = b"".join(b"K" + bytes([k]) for k in range(first, first + count))
    text = b"U" + bytes([len(key)]) + key.encode() + b"q\x01"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04"
    array += b"(K\x01T" + struct.pack("<i", len(pixels)) + pixels + b"tb"
    return b"\x80\x02}q\x00(" + text + b"]q\x05(" + labels + b"eU\x04dataq\x06" + array + b"u."


@pytest.mark.parametrize(("task", "files"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_is_the_same_in_both_versions(task: str, files: Any, tmp_path: Path) -> None:
    binary, other = tmp_path / "binary", tmp_path / "pickled"
    (binary / files.folder).mkdir(parents=True)
    (other / files.pickled).mkdir(parents=True)
    for position, name in enumerate((*files.train, *files.test)):
        (binary / files.folder / name).write_bytes(cifar_records(3, files.num_labels, position))
    for position, name in enumerate((*files.pickled_train, *files.pickled_test)):
        (other / files.pickled / name).write_bytes(pickled(3, files.key, position))
    one, two = (load(task, folder, normalize=False) for folder in (binary, other))
    for data in (one, two):
        assert data.input_shape == (3, 32, 32)
        assert data.num_outputs == files.num_classes
        for x, y in (data.train, data.test):
            np.testing.assert_allclose(x[:, 2, 5, 7] * 255, y, rtol=1e-6)
    np.testing.assert_array_equal(one.train[0], two.train[0])
    np.testing.assert_array_equal(one.test[1], two.test[1])
    assert load(task, binary).train[0].mean() < 0


@fuzzed
@given(
    content=st.binary(max_size=400),
    at=st.integers(0, 6300),
    read=st.sampled_from([read_binary, read_pickled]),
)
def test_a_damaged_file_is_refused(content: bytes, at: int, read: Any, tmp_path: Path) -> None:
    valid = cifar_records(2, 1) if read is read_binary else pickled(2, "labels")
    path = tmp_path / "batch"
    for damaged in (content, valid[:at], valid[:at] + content + valid[at + len(content) :]):
        path.write_bytes(damaged)
        x, y, reason = np.zeros((1, 3, 32, 32)), np.zeros(1), ""
        try:
            x, y = read(path, CIFAR10)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        assert not reason or reason.startswith(str(path))
        assert "\n" not in reason
        assert x.shape == (len(y), 3, 32, 32)
        assert 0 <= y.min() <= y.max() < 10


def test_a_pickle_is_not_carried_out(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "made").encode() + b"'\ntR.")
    with pytest.raises(OSError, match="no batch of CIFAR images"):
        read_pickled(path, CIFAR10)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("task", ["emnist", "svhn", "cifar10", "cifar100", "shakespeare", "sentiment140"])
def test_what_cannot_be_downloaded_says_what_to_do(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(ValueError, match=f"^{task}: cannot read the .* or download them into it") as raised:
        load(task, tmp_path)
    text = str(raised.value)
    assert "no network" in text
    assert str(tmp_path) in text
    assert "set --data-dir" in text
    assert ".edu" in text or ".gov" in text or "github.com" in text
    assert len(text.splitlines()) == 1


def idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def emnist_files(folder: Path, split: str, first: int, count: int = 20) -> np.ndarray:
    raw = folder / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(256, size=(count, 28, 28))
    for part in ("train", "test"):
        idx(raw / f"emnist-{split}-{part}-images-idx3-ubyte", images)
        idx(raw / f"emnist-{split}-{part}-labels-idx1-ubyte", np.arange(count) % 10 + first)
    return images


@pytest.mark.parametrize(("split", "first", "classes"), [("letters", 1, 26), ("byclass", 0, 62)])
def test_emnist_stands_upright_and_counts_from_0(
    split: str, first: int, classes: int, tmp_path: Path
) -> None:
    images = emnist_files(tmp_path, split, first)
    data = load("emnist", tmp_path, split=split, normalize=False)
    np.testing.assert_allclose(data.train[0][:, 0] * 255, images.swapaxes(1, 2), rtol=1e-5)
    assert data.train[1].tolist() == [k % 10 for k in range(20)]
    assert data.num_outputs == classes
    x, _ = load("emnist", tmp_path, split=split).train
    assert x.mean() == pytest.approx(0, abs=1e-5)
    assert x.std() == pytest.approx(1, rel=1e-5)
    with pytest.raises(ValueError, match="task emnist: split must be one of balanced, byclass"):
        TASKS["emnist"](split="all")


def test_svhn_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    x, y = np.random.default_rng(0).integers(256, size=(32, 32, 3, 6)), np.array([[10, 1, 2, 3, 4, 9]]).T
    known = {}
    for part in ("train", "test"):
        path = tmp_path / f"{part}_32x32.mat"
        savemat(path, {"X": x.astype(np.uint8), "y": y})
        known[part] = ["", path.name, hashlib.md5(path.read_bytes()).hexdigest()]
    monkeypatch.setattr(SVHN, "split_list", known)
    data = load("svhn", tmp_path, normalize=False, augment="flip")
    assert data.train[1].tolist() == [0, 1, 2, 3, 4, 9]
    np.testing.assert_allclose(data.train[0][3] * 255, x[..., 3].transpose(2, 0, 1), rtol=1e-5)
    assert data.augmentation == Augmentation(crop=False, flip=True, black=(-0.0, -0.0, -0.0))


@pytest.mark.skipif(
    not (Path(os.environ.get("FLEXFL_DATA_DIR", "none")) / "cifar-10-batches-py").is_dir(),
    reason="FLEXFL_DATA_DIR names no directory with CIFAR-10",
)
def test_cifar10_itself() -> None:
    data = load("cifar10", Path(os.environ["FLEXFL_DATA_DIR"]))
    for (x, y), count in ((data.train, 50_000), (data.test, 10_000)):
        assert x.shape == (count, 3, 32, 32)
        assert np.bincount(y).tolist() == [count // 10] * 10
    x, _ = data.train
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-3)
    np.testing.assert_allclose(x.std((0, 2, 3)), 1, atol=1e-3)


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


def test_changes_are_named() -> None:
    with pytest.raises(ValueError, match="task mnist: augment must be none, crop, flip or crop\\+flip"):
        TASKS["mnist"](augment="rotate")
