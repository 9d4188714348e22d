"""CIFAR-10 and CIFAR-100, in the binary version; nothing is unpickled."""

from __future__ import annotations

import pickletools
import tarfile
import zlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flexfl.ground.files import read_bytes, replacing
from flexfl.tasks.augmentation import check_augment
from flexfl.tasks.data import Examples
from flexfl.tasks.dataset import Dataset, DatasetTask
from flexfl.tasks.download import download
from flexfl.tasks.images import Augment, Scale, image_dataset

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 28  # of a file; the largest has 154 MB
_INTEGERS = ("BININT", "BININT1", "BININT2", "INT")
_BETWEEN = ("EMPTY_LIST", "LIST", "MARK", "BINPUT", "LONG_BINPUT", "PUT", "APPEND", "APPENDS", "MEMOIZE")


class Files(NamedTuple):
    """Where a data set comes from, and how it lies in its directory.

    Attributes
    ----------
    archive, size, checksum
        Name of the archive, its bytes, and what they add up to.
    folder, train, test
        The folder in the archive, and the files in it; each image is its labels and then its pixels.
    num_labels
        How many labels an image has, one byte each; the last one counts.
    num_classes
        How many classes that one has.
    pickled, pickled_train, pickled_test, key
        The same for the version with pickles, which torchvision downloads, and what the labels are called.
    """

    archive: str
    size: int
    checksum: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    num_labels: int
    num_classes: int
    pickled: str
    pickled_train: tuple[str, ...]
    pickled_test: tuple[str, ...]
    key: str


SITE = "https://www.cs.toronto.edu/~kriz/"
CIFAR10 = Files(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "cifar-10-batches-bin",
    tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    ("test_batch.bin",),
    1,
    10,
    "cifar-10-batches-py",
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    ("test_batch",),
    "labels",
)
CIFAR100 = Files(
    "cifar-100-binary.tar.gz",
    168_513_733,
    "md5:03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    ("train.bin",),
    ("test.bin",),
    2,
    100,
    "cifar-100-python",
    ("train",),
    ("test",),
    "fine_labels",
)


def cifar10(*, data_dir: str = "data", normalize: bool = True, augment: Augment = "none") -> DatasetTask:
    """32x32 colour images of ten kinds of things: 50,000 training and 10,000 test images (CIFAR-10).

    The input shape is (3, 32, 32). If the directory has neither the binary version (``cifar-10-batches-bin``)
    nor torchvision's (``cifar-10-batches-py``), the former is downloaded. No formal licence: cite the report.

    Parameters
    ----------
    data_dir : str
        Directory of the images.
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.
    augment : str
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out
        32x32, `flip` mirrors half of them.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    scale = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)) if normalize else None
    check_augment("cifar10", augment)
    load = partial(_load, "cifar10", CIFAR10, data_dir, scale, augment)
    return DatasetTask("cifar10", load, default_model="cnn3x3")


def cifar100(*, data_dir: str = "data", normalize: bool = True, augment: Augment = "none") -> DatasetTask:
    """32x32 colour images of a hundred kinds of things: 50,000 training and 10,000 test images (CIFAR-100).

    The input shape is (3, 32, 32), and classes are the fine ones. If the directory has neither the binary
    version (``cifar-100-binary``) nor torchvision's (``cifar-100-python``), the former is downloaded. No
    formal licence: cite the report.

    Parameters
    ----------
    data_dir : str
        Directory of the images.
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.
    augment : str
        Changes of training images, see `cifar10`.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
    """
    scale = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)) if normalize else None
    check_augment("cifar100", augment)
    load = partial(_load, "cifar100", CIFAR100, data_dir, scale, augment)
    return DatasetTask("cifar100", load, default_model="resnet18")


def _load(task: str, files: Files, data_dir: str, scale: Scale | None, augment: str) -> Dataset:
    root = Path(data_dir)
    try:
        if not (root / files.folder).is_dir() and (root / files.pickled).is_dir():
            read, folder, parts = read_pickled, files.pickled, (files.pickled_train, files.pickled_test)
        else:
            _unpack(root, files)
            read, folder, parts = read_binary, files.folder, (files.train, files.test)
        train, test = (_joined([read(root / folder / name, files) for name in names]) for names in parts)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise ValueError(
            f"{task}: cannot read the images from directory '{data_dir}' or download them into it "
            f"({reason}); put {SITE}{files.archive} there, or set --data-dir to a directory that has them"
        ) from None
    return image_dataset(train, test, files.num_classes, scale, augment)


def _unpack(root: Path, files: Files) -> None:
    """Make the files of the binary version, unless they are there, from the archive."""
    folder, archive = root / files.folder, root / files.archive
    missing = [name for name in (*files.train, *files.test) if not (folder / name).exists()]
    if not missing:
        return
    download(SITE + files.archive, archive, files.size, files.checksum)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            for name in missing:
                member = tar.extractfile(f"{files.folder}/{name}")
                if member is None:
                    raise OSError(0, f"{name} in it is no file", str(archive))
                with replacing(folder / name) as part:
                    part.write_bytes(member.read(MAX_BYTES))
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise OSError(0, f"it is damaged ({error}); remove it", str(archive)) from None


def read_binary(path: Path, files: Files) -> Examples:
    """Read a file of the binary version.

    Raises
    ------
    OSError
        The file cannot be read, or is something else.
    """
    content = np.frombuffer(read_bytes(path, MAX_BYTES), np.uint8)
    record = files.num_labels + PIXELS
    if not len(content) or len(content) % record:
        raise OSError(0, f"{len(content)} bytes, which are no images of {record} bytes each", str(path))
    rows = content.reshape(-1, record)
    return _checked(path, rows[:, files.num_labels :], rows[:, files.num_labels - 1], files)


def read_pickled(path: Path, files: Files) -> Examples:
    """Read a file of the version with pickles as a list of its operations, none of which is carried out.

    Raises
    ------
    OSError
        The file cannot be read, or is something else.
    """
    content = read_bytes(path, MAX_BYTES)
    labels: list[int] = []
    pixels, among_labels = "", False
    try:
        for operation, value, _ in pickletools.genops(content):
            if among_labels and operation.name in _INTEGERS and isinstance(value, int):
                labels.append(value)
            elif isinstance(value, str):
                among_labels = value == files.key
                pixels = max(pixels, value, key=len)
            elif operation.name not in _BETWEEN:
                among_labels = False
        rows = np.frombuffer(pixels.encode("latin-1"), np.uint8).reshape(len(labels), PIXELS)
    except (ValueError, LookupError, OverflowError, MemoryError) as error:
        raise OSError(0, f"it is no batch of CIFAR images: {str(error)[:100]}", str(path)) from None
    return _checked(path, rows, np.array(labels, np.int64), files)


def _checked(path: Path, rows: np.ndarray, labels: np.ndarray, files: Files) -> Examples:
    if not len(labels) or labels.min() < 0 or labels.max() >= files.num_classes:
        raise OSError(0, f"a label is not from 0 to {files.num_classes - 1}, or there is none", str(path))
    return rows.reshape(-1, *SHAPE), labels.astype(np.int64)


def _joined(parts: list[Examples]) -> Examples:
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, y
