"""Handwritten digits shipped with scikit-learn, read without importing it, which takes 0.8 seconds."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedtide.tasks.data import TEST_SHARE, Examples
from fedtide.tasks.dataset import Dataset, DatasetTask

FILE = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's folder: 64 pixels and the digit


def digits() -> DatasetTask:
    """8x8 handwritten digits shipped with scikit-learn: 1797 images, no download.

    Pixels are scaled from 0..16 to 0..1; the input shape is (1, 8, 8). A fifth of each class forms
    the test set, which does not depend on the seed of the run.

    Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI repository, 1998.
    """
    return DatasetTask("digits", _load, default_model="logistic")


def load_digits() -> Examples:
    """Return the pixels, from 0 to 16, shape (1797, 64), and the digits, shape (1797,)."""
    package = find_spec("sklearn")
    file = Path(package.origin).parent / FILE if package is not None and package.origin else FILE
    if not file.is_file():  # another version may keep them elsewhere
        from sklearn import datasets

        x, y = datasets.load_digits(return_X_y=True)
        return x, y
    table = np.loadtxt(file, np.uint8, delimiter=",")
    return table[:, :-1], table[:, -1]


def _load() -> Dataset:
    pixels, labels = load_digits()
    x, y = (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32), labels.astype(np.int64)
    rng = np.random.default_rng([0, *b"digits"])
    test = np.zeros(len(y), dtype=bool)
    for c in range(10):
        members = np.flatnonzero(y == c)
        test[rng.choice(members, round(TEST_SHARE * len(members)), replace=False)] = True
    return Dataset((x[~test], y[~test]), (x[test], y[test]), num_outputs=10)
