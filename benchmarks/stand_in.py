"""Random data in the shapes of the data sets: how long a step takes does not depend on what is in them."""

from __future__ import annotations

import numpy as np

from flexfl.tasks import Dataset, DatasetTask

COUNT = 400  # training examples


def images(*, channels: int = 3, side: int = 32, classes: int = 10) -> DatasetTask:
    """Random images."""

    def load() -> Dataset:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(COUNT, channels, side, side)).astype(np.float32)
        return Dataset((x, np.arange(COUNT) % classes), (x[:20], np.arange(20) % classes), classes)

    return DatasetTask("images", load)


def texts(*, length: int = 80, words: int = 80, classes: int = 80) -> DatasetTask:
    """Random texts, as numbers of words or characters."""

    def load() -> Dataset:
        x = np.random.default_rng(0).integers(words, size=(COUNT, length))
        return Dataset((x, np.arange(COUNT) % classes), (x[:20], np.arange(20) % classes), classes)

    return DatasetTask("texts", load, "iid")
