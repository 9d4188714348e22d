"""MNIST, Fashion-MNIST, EMNIST and SVHN, read through torchvision."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Annotated, Any

from flexfl.tasks.augmentation import check_augment
from flexfl.tasks.data import Examples
from flexfl.tasks.dataset import Dataset, DatasetTask
from flexfl.tasks.images import Augment, Pixels, Scale, image_dataset, scale_of

EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}


def mnist(*, data_dir: str = "data", normalize: bool = True, augment: Augment = "none") -> DatasetTask:
    """28x28 handwritten digits: 60,000 training and 10,000 test images (MNIST).

    The input shape is (1, 28, 28). Images missing from the directory are downloaded into it.

    Parameters
    ----------
    data_dir : str
        Directory of the images, in torchvision's layout (``MNIST/raw`` below it).
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.
    augment : str
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out the
        old size, `flip` mirrors half of them.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.
    """
    scale = ((0.1307,), (0.3081,)) if normalize else None
    check_augment("mnist", augment)
    return DatasetTask("mnist", partial(_mnist, "mnist", "MNIST", data_dir, scale, augment))


def fashion_mnist(
    *, data_dir: str = "data", normalize: bool = True, augment: Augment = "none"
) -> DatasetTask:
    """28x28 images of clothing: 60,000 training and 10,000 test images (Fashion-MNIST).

    The input shape is (1, 28, 28). Images missing from the directory are downloaded into it.

    Parameters
    ----------
    data_dir : str
        Directory of the images, in torchvision's layout (``FashionMNIST/raw`` below it).
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.
    augment : str
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out the
        old size, `flip` mirrors half of them.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking, 2017.
    """
    scale = ((0.2860,), (0.3530,)) if normalize else None
    load = partial(_mnist, "fashion-mnist", "FashionMNIST", data_dir, scale, augment)
    check_augment("fashion-mnist", augment)
    return DatasetTask("fashion-mnist", load)


def emnist(
    *,
    split: Annotated[str, "balanced | byclass | bymerge | digits | letters | mnist"] = "balanced",
    data_dir: str = "data",
    normalize: bool = True,
    augment: Augment = "none",
) -> DatasetTask:
    """28x28 handwritten letters and digits, in six selections of 10 to 62 classes (EMNIST).

    The input shape is (1, 28, 28), and letters stand upright. Images missing from the directory are
    downloaded into it: one archive of 560 MB with all selections. Free to use, like NIST's data; cite the
    paper.

    Parameters
    ----------
    split : str
        `balanced` has 112,800 training and 18,800 test images of 47 classes; `bymerge` the same classes, and
        `byclass` all 62, with 697,932 and 116,323 images, which take 3 GB of memory; `letters` has 26
        classes, `digits` and `mnist` ten.
    data_dir : str
        Directory of the images, in torchvision's layout (``EMNIST/raw`` below it).
    normalize : bool
        Standardise the pixels with mean and standard deviation of the training images; otherwise scale them
        to 0..1.
    augment : str
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out the
        old size, `flip` mirrors half of them.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    Raises
    ------
    ValueError
        There is no such split.

    References
    ----------
    Cohen et al., EMNIST: an Extension of MNIST to Handwritten Letters, 2017.
    """
    check_augment("emnist", augment)
    if split not in EMNIST_CLASSES:
        raise ValueError(f"task emnist: split must be one of {', '.join(EMNIST_CLASSES)}, not {split!r}")
    return DatasetTask("emnist", partial(_emnist, split, data_dir, normalize, augment), default_model="cnn")


def svhn(*, data_dir: str = "data", normalize: bool = True, augment: Augment = "none") -> DatasetTask:
    """32x32 colour images of house numbers' digits: 73,257 training and 26,032 test images (SVHN).

    The input shape is (3, 32, 32). Images missing from the directory are downloaded into it. For
    non-commercial use only; cite the paper.

    Parameters
    ----------
    data_dir : str
        Directory of the images, in torchvision's layout (``train_32x32.mat`` and ``test_32x32.mat`` in it).
    normalize : bool
        Standardise the pixels with the data set's mean and standard deviation; otherwise scale them to
        0..1.
    augment : str
        Changes of training images, drawn anew whenever one is used: `crop` pads by 4 pixels and cuts out the
        old size, `flip` mirrors half of them.

    Returns
    -------
    DatasetTask
        The task; its `federate` raises ValueError if the images are missing and cannot be downloaded.

    References
    ----------
    Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011.
    """
    scale = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)) if normalize else None
    check_augment("svhn", augment)
    return DatasetTask("svhn", partial(_svhn, data_dir, scale, augment), default_model="cnn3x3:hidden=128")


def _mnist(task: str, name: str, data_dir: str, scale: Scale | None, augment: str) -> Dataset:
    def read(datasets: Any, train: bool) -> tuple[Pixels, Any]:
        images = getattr(datasets, name)(data_dir, train=train, download=True)
        return images.data.numpy()[:, None], images.targets.numpy()

    by_hand = f"unpack the four files into '{data_dir}/{name}/raw'"
    return _read(task, data_dir, by_hand, read, lambda a, b: image_dataset(a, b, 10, scale, augment))


def _emnist(split: str, data_dir: str, normalize: bool, augment: str) -> Dataset:
    def read(datasets: Any, train: bool) -> tuple[Pixels, Any]:
        images = datasets.EMNIST(data_dir, split=split, train=train, download=True)
        first = 1 if split == "letters" else 0  # the classes of letters are numbered from 1
        return images.data.numpy().swapaxes(1, 2)[:, None], images.targets.numpy() - first

    page = "www.nist.gov/itl/products-and-services/emnist-dataset"
    by_hand = f"unpack the files of gzip.zip, from {page}, into '{data_dir}/EMNIST/raw'"

    def make(train: Examples, test: Examples) -> Dataset:
        scale = scale_of(train[0]) if normalize else None
        return image_dataset(train, test, EMNIST_CLASSES[split], scale, augment)

    return _read("emnist", data_dir, by_hand, read, make)


def _svhn(data_dir: str, scale: Scale | None, augment: str) -> Dataset:
    def read(datasets: Any, train: bool) -> tuple[Pixels, Any]:
        images = datasets.SVHN(data_dir, split="train" if train else "test", download=True)
        return images.data, images.labels

    by_hand = f"put train_32x32.mat and test_32x32.mat from ufldl.stanford.edu/housenumbers into '{data_dir}'"
    return _read("svhn", data_dir, by_hand, read, lambda a, b: image_dataset(a, b, 10, scale, augment))


def _read(
    task: str,
    data_dir: str,
    by_hand: str,
    read: Callable[[Any, bool], tuple[Pixels, Any]],
    make: Callable[[Examples, Examples], Dataset],
) -> Dataset:
    """Make a data set of training and test images that torchvision reads, and downloads if need be."""
    from torchvision import datasets  # slow to import, and only these tasks need it

    try:
        # Standard output is reserved for the run's results; download progress goes to standard error.
        with redirect_stdout(sys.stderr):
            return make(*(read(datasets, part) for part in (True, False)))
    except (OSError, RuntimeError, AssertionError, ValueError, LookupError, EOFError, zlib.error) as error:
        # Only the first line: torchvision adds one for each mirror that it tried.
        reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
        raise ValueError(
            f"{task}: cannot read the images from directory '{data_dir}' or download them into it "
            f"({reason}); {by_hand}, or set --data-dir to a directory that has them"
        ) from error
