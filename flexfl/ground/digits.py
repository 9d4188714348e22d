"""The handwritten digits that scikit-learn ships, read without importing it, which takes 0.8 seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path("datasets", "data", "digits.csv.gz")  # in scikit-learn's folder: 64 pixels and the digit


def load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the pixels, from 0 to 16, shape (1797, 64), and the digits, shape (1797,).

    Raises
    ------
    ModuleNotFoundError
        scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    file = Path(package.origin).parent / FILE if package is not None and package.origin else FILE
    if not file.is_file():  # another version may keep them elsewhere
        from sklearn import datasets

        x, y = datasets.load_digits(return_X_y=True)
        return x, y
    table = np.loadtxt(file, np.uint8, delimiter=",")
    return table[:, :-1], table[:, -1]
